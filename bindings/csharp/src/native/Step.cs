using System;
using System.Collections.Generic;
using System.Threading;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A step of a session, which takes and returns values. It keeps the lists that every run needs, so that
    /// a run allocates no managed memory.</summary>
    internal sealed unsafe class Step
    {
        internal delegate IntPtr RunCall(
            OrtTrainingSessionHandle session, RunOptions options, UIntPtr inputCount, IntPtr* inputs,
            UIntPtr outputCount, IntPtr* outputs);

        internal delegate IntPtr CountCall(OrtTrainingSessionHandle session, out UIntPtr count);

        internal delegate IntPtr NameCall(
            OrtTrainingSessionHandle session, UIntPtr index, IntPtr allocator, out IntPtr name);

        private readonly RunCall runCall;
        private readonly CountCall countCall;
        private readonly NameCall nameCall;
        private string[] outputNames;
        private ValueHandles spare;

        internal Step(RunCall runCall, CountCall countCall, NameCall nameCall)
        {
            this.runCall = runCall;
            this.countCall = countCall;
            this.nameCall = nameCall;
        }

        /// <summary>Runs the step and writes the outputs into the caller's tensors.</summary>
        internal void RunInto(
            OrtTrainingSessionHandle session, RunOptions options,
            IReadOnlyCollection<FixedBufferOnnxValue> inputs, string inputsName,
            IReadOnlyCollection<FixedBufferOnnxValue> outputs, string outputsName)
        {
            ValueHandles values = Rent();
            try
            {
                values.Add(inputs, inputsName);
                int inputCount = values.Count;
                values.Add(outputs, outputsName);
                Run(session, options, values, inputCount);
            }
            finally
            {
                Return(values);
            }
        }

        /// <summary>Runs, and returns the outputs with their names.</summary>
        internal IDisposableReadOnlyCollection<DisposableNamedOnnxValue> RunNamed(
            OrtTrainingSessionHandle session, RunOptions options,
            IReadOnlyCollection<FixedBufferOnnxValue> inputs, string inputsName)
        {
            ValueHandles values = Rent();
            try
            {
                values.Add(inputs, inputsName);
                DisposableList<OrtValue> outputs = RunForOutputs(session, options, values);
                var named = new DisposableList<DisposableNamedOnnxValue>(outputs.Count);
                try
                {
                    for (int i = 0; i < outputs.Count; ++i)
                    {
                        named.Add(DisposableNamedOnnxValue.CreateFromOrtValue(outputNames[i], outputs[i]));
                    }
                    return named;
                }
                catch
                {
                    outputs.Dispose();
                    throw;
                }
            }
            finally
            {
                Return(values);
            }
        }

        /// <summary>Runs, and returns the outputs.</summary>
        internal IDisposableReadOnlyCollection<OrtValue> Run(
            OrtTrainingSessionHandle session, RunOptions options, IReadOnlyCollection<OrtValue> inputs,
            string inputsName)
        {
            ValueHandles values = Rent();
            try
            {
                values.Add(inputs, inputsName);
                return RunForOutputs(session, options, values);
            }
            finally
            {
                Return(values);
            }
        }

        private DisposableList<OrtValue> RunForOutputs(
            OrtTrainingSessionHandle session, RunOptions options, ValueHandles values)
        {
            int inputCount = values.Count;
            int outputCount = OutputNames(session).Length;
            values.AddEmpty(outputCount);
            var outputs = new DisposableList<OrtValue>(outputCount);
            Run(session, options, values, inputCount);
            for (int i = inputCount; i < values.Count; ++i)
            {
                outputs.Add(new OrtValue(values.Array[i]));
            }
            return outputs;
        }

        private void Run(OrtTrainingSessionHandle session, RunOptions options, ValueHandles values, int inputCount)
        {
            RunOptions given = options == null ? RunOptions.None : options.Live;
            fixed (IntPtr* first = values.Array)
            {
                NativeStatus.ThrowOnError(runCall(
                    session, given, (UIntPtr)inputCount, first, (UIntPtr)(values.Count - inputCount),
                    first + inputCount));
            }
        }

        // The outputs of a model never change, so their names are queried once.
        private string[] OutputNames(OrtTrainingSessionHandle session)
        {
            return outputNames ?? (outputNames = ReadOutputNames(session));
        }

        private string[] ReadOutputNames(OrtTrainingSessionHandle session)
        {
            List<string> names = NativeText.ReadAll(
                (out UIntPtr count) => countCall(session, out count),
                (UIntPtr index, out IntPtr name) => nameCall(session, index, OrtAllocator.Default, out name));
            return names.ToArray();
        }

        // Two threads never share a list, even though the session rejects a second thread.
        private ValueHandles Rent()
        {
            return Interlocked.Exchange(ref spare, null) ?? new ValueHandles();
        }

        private void Return(ValueHandles values)
        {
            values.Clear();
            Volatile.Write(ref spare, values);
        }
    }
}
