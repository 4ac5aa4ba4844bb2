using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A run of a forward session, which takes names and values and returns values.</summary>
    internal static unsafe class ForwardRun
    {
        /// <summary>Runs on values or buffers, and returns the outputs.</summary>
        internal static DisposableList<OrtValue> Run<T>(
            OrtSessionHandle session, RunOptions options, IReadOnlyCollection<string> inputNames,
            IReadOnlyCollection<T> inputValues, IReadOnlyCollection<string> outputNames)
            where T : class, IRunValue
        {
            var values = new ValueHandles();
            try
            {
                values.Add(inputValues, nameof(inputValues));
                int inputCount = values.Count;
                values.AddEmpty(Arguments.NotNull(outputNames, nameof(outputNames)).Count);
                var outputs = new DisposableList<OrtValue>(outputNames.Count);
                Call(session, options, inputNames, values, inputCount, outputNames, nameof(outputNames));
                for (int i = inputCount; i < values.Count; ++i)
                {
                    outputs.Add(new OrtValue(values.Array[i]));
                }
                return outputs;
            }
            finally
            {
                values.Clear();
            }
        }

        /// <summary>Runs on values with their names, and returns the outputs.</summary>
        internal static DisposableList<OrtValue> Run(
            OrtSessionHandle session, RunOptions options, IReadOnlyDictionary<string, OrtValue> inputs,
            IReadOnlyCollection<string> outputNames)
        {
            Arguments.NotNull(inputs, nameof(inputs));
            return Run(
                session, options, new List<string>(inputs.Keys), new List<OrtValue>(inputs.Values), outputNames);
        }

        /// <summary>Runs on C# tensors, and returns the outputs with their names.</summary>
        internal static IDisposableReadOnlyCollection<DisposableNamedOnnxValue> RunNamed(
            OrtSessionHandle session, RunOptions options, IReadOnlyCollection<NamedOnnxValue> inputs,
            IReadOnlyCollection<string> outputNames)
        {
            Arguments.NotNull(inputs, nameof(inputs));
            var names = new List<string>(inputs.Count);
            using (var values = new DisposableList<OrtValue>(inputs.Count))
            {
                foreach (NamedOnnxValue input in inputs)
                {
                    if (input == null)
                    {
                        throw new ArgumentNullException(nameof(inputs) + "[" + names.Count + "]");
                    }
                    names.Add(input.Name);
                    values.Add(input.CreateOrtValue());
                }
                return Named(outputNames, Run(session, options, names, values, outputNames));
            }
        }

        /// <summary>Runs on buffers, and returns the outputs with their names.</summary>
        internal static IDisposableReadOnlyCollection<DisposableNamedOnnxValue> RunNamed(
            OrtSessionHandle session, RunOptions options, IReadOnlyCollection<string> inputNames,
            IReadOnlyCollection<FixedBufferOnnxValue> inputValues, IReadOnlyCollection<string> outputNames)
        {
            return Named(outputNames, Run(session, options, inputNames, inputValues, outputNames));
        }

        /// <summary>Runs on values or buffers, and writes the outputs into the caller's values or buffers.</summary>
        internal static void RunInto<TInput, TOutput>(
            OrtSessionHandle session, RunOptions options, IReadOnlyCollection<string> inputNames,
            IReadOnlyCollection<TInput> inputValues, IReadOnlyCollection<string> outputNames,
            IReadOnlyCollection<TOutput> outputValues)
            where TInput : class, IRunValue
            where TOutput : class, IRunValue
        {
            var values = new ValueHandles();
            try
            {
                values.Add(inputValues, nameof(inputValues));
                int inputCount = values.Count;
                values.Add(outputValues, nameof(outputValues));
                Call(session, options, inputNames, values, inputCount, outputNames, nameof(outputValues));
            }
            finally
            {
                values.Clear();
            }
        }

        private static void Call(
            OrtSessionHandle session, RunOptions options, IReadOnlyCollection<string> inputNames,
            ValueHandles values, int inputCount, IReadOnlyCollection<string> outputNames, string outputsName)
        {
            using (var nativeInputs = new NativeTexts(inputNames, nameof(inputNames)))
            using (var nativeOutputs = new NativeTexts(outputNames, nameof(outputNames)))
            fixed (IntPtr* first = values.Array)
            {
                Arguments.SameCount(nativeInputs.Count, nameof(inputNames), inputCount, "inputValues");
                Arguments.SameCount(
                    nativeOutputs.Count, nameof(outputNames), values.Count - inputCount, outputsName);
                NativeStatus.ThrowOnError(OrtApi.Run(
                    session, options == null ? RunOptions.None : options.Live, nativeInputs.Pointers, first,
                    (UIntPtr)inputCount, nativeOutputs.Pointers, (UIntPtr)nativeOutputs.Count, first + inputCount));
            }
        }

        private static IDisposableReadOnlyCollection<DisposableNamedOnnxValue> Named(
            IReadOnlyCollection<string> names, DisposableList<OrtValue> outputs)
        {
            var named = new DisposableList<DisposableNamedOnnxValue>(outputs.Count);
            try
            {
                foreach (string name in names)
                {
                    named.Add(DisposableNamedOnnxValue.CreateFromOrtValue(name, outputs[named.Count]));
                }
                return named;
            }
            catch
            {
                outputs.Dispose();
                throw;
            }
        }
    }
}
