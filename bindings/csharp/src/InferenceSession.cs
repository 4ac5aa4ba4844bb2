using System;
using System.Collections.Generic;
using System.Threading.Tasks;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class InferenceSession
    {
        private ModelMetadata modelMetadata;

        /// <summary>The native handle of the session.</summary>
        internal OrtSessionHandle Native => Live;

        /// <summary>Creates a session from a model.</summary>
        /// <param name="modelPath">Path of an ONNX file. External data is found beside it.</param>
        /// <param name="prepackedWeightsContainer">Packed weights; it stays empty.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for a session without a container.</exception>
        public InferenceSession(string modelPath, PrePackedWeightsContainer prepackedWeightsContainer)
            : this(modelPath, SessionOptions.Default, prepackedWeightsContainer)
        {
        }

        /// <summary>Creates a session from a model.</summary>
        /// <param name="modelPath">Path of an ONNX file. External data is found beside it.</param>
        /// <param name="options">Settings, copied.</param>
        /// <param name="prepackedWeightsContainer">Packed weights; it stays empty.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for a session without a container.</exception>
        public InferenceSession(
            string modelPath, SessionOptions options, PrePackedWeightsContainer prepackedWeightsContainer)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateSessionWithPrepackedWeightsContainer(
                OrtEnv.Instance(), NativeText.Path(modelPath, nameof(modelPath)),
                Arguments.NotNull(options, nameof(options)).Live,
                Arguments.NotNull(prepackedWeightsContainer, nameof(prepackedWeightsContainer)).Live,
                out IntPtr session));
            handle = new OrtSessionHandle(session);
        }

        /// <summary>Creates a session from a model.</summary>
        /// <param name="model">The content of an ONNX file.</param>
        /// <param name="prepackedWeightsContainer">Packed weights; it stays empty.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for a session without a container.</exception>
        public InferenceSession(byte[] model, PrePackedWeightsContainer prepackedWeightsContainer)
            : this(model, SessionOptions.Default, prepackedWeightsContainer)
        {
        }

        /// <summary>Creates a session from a model.</summary>
        /// <param name="model">The content of an ONNX file.</param>
        /// <param name="options">Settings, copied.</param>
        /// <param name="prepackedWeightsContainer">Packed weights; it stays empty.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for a session without a container.</exception>
        public InferenceSession(
            byte[] model, SessionOptions options, PrePackedWeightsContainer prepackedWeightsContainer)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateSessionFromArrayWithPrepackedWeightsContainer(
                OrtEnv.Instance(), Arguments.NotNull(model, nameof(model)), (UIntPtr)model.Length,
                Arguments.NotNull(options, nameof(options)).Live,
                Arguments.NotNull(prepackedWeightsContainer, nameof(prepackedWeightsContainer)).Live,
                out IntPtr session));
            handle = new OrtSessionHandle(session);
        }

        /// <summary>The metadata of the model.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public ModelMetadata ModelMetadata => modelMetadata ?? (modelMetadata = ModelMetadata.Of(Live));

        /// <summary>Runs the model and writes the outputs into the caller's tensors.</summary>
        /// <param name="inputs">A tensor for each input, by name.</param>
        /// <param name="outputs">A dense tensor for each wanted output, by name, of the type and shape that the run
        /// produces.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Run(IReadOnlyCollection<NamedOnnxValue> inputs, IReadOnlyCollection<NamedOnnxValue> outputs)
        {
            Run(inputs, outputs, null);
        }

        /// <summary>Runs the model and writes the outputs into the caller's tensors.</summary>
        /// <param name="inputs">A tensor for each input, by name.</param>
        /// <param name="outputs">A dense tensor for each wanted output, by name, of the type and shape that the run
        /// produces.</param>
        /// <param name="options">Settings for this run.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="inputs"/> or <paramref
        /// name="outputs"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Run(
            IReadOnlyCollection<NamedOnnxValue> inputs, IReadOnlyCollection<NamedOnnxValue> outputs, RunOptions options)
        {
            using (var given = new NamedValues(inputs, nameof(inputs)))
            using (var taken = new NamedValues(outputs, nameof(outputs)))
            {
                ForwardRun.RunInto(Live, options, given.Names, given.Values, taken.Names, taken.Values);
            }
        }

        /// <summary>Runs the model and writes the outputs into the caller's buffers.</summary>
        /// <param name="inputs">A tensor for each input, by name.</param>
        /// <param name="outputNames">Names of the wanted outputs.</param>
        /// <param name="outputValues">Buffers that receive the outputs, in the order of their names.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Run(
            IReadOnlyCollection<NamedOnnxValue> inputs, IReadOnlyCollection<string> outputNames,
            IReadOnlyCollection<FixedBufferOnnxValue> outputValues)
        {
            Run(inputs, outputNames, outputValues, null);
        }

        /// <summary>Runs the model and writes the outputs into the caller's buffers.</summary>
        /// <param name="inputs">A tensor for each input, by name.</param>
        /// <param name="outputNames">Names of the wanted outputs.</param>
        /// <param name="outputValues">Buffers that receive the outputs, in the order of their names.</param>
        /// <param name="options">Settings for this run.</param>
        /// <exception cref="System.ArgumentNullException">When an argument but the last is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Run(
            IReadOnlyCollection<NamedOnnxValue> inputs, IReadOnlyCollection<string> outputNames,
            IReadOnlyCollection<FixedBufferOnnxValue> outputValues, RunOptions options)
        {
            using (var given = new NamedValues(inputs, nameof(inputs)))
            {
                ForwardRun.RunInto(
                    Live, options, given.Names, given.Values, outputNames, FixedBufferOnnxValue.ValuesOf(outputValues, nameof(outputValues)));
            }
        }

        /// <summary>Runs the model and writes the outputs into the caller's tensors.</summary>
        /// <param name="inputNames">Names of the inputs.</param>
        /// <param name="inputValues">The inputs, in the order of their names.</param>
        /// <param name="outputs">A dense tensor for each wanted output, by name, of the type and shape that the run
        /// produces.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Run(
            IReadOnlyCollection<string> inputNames, IReadOnlyCollection<FixedBufferOnnxValue> inputValues,
            IReadOnlyCollection<NamedOnnxValue> outputs)
        {
            Run(inputNames, inputValues, outputs, null);
        }

        /// <summary>Runs the model and writes the outputs into the caller's tensors.</summary>
        /// <param name="inputNames">Names of the inputs.</param>
        /// <param name="inputValues">The inputs, in the order of their names.</param>
        /// <param name="outputs">A dense tensor for each wanted output, by name, of the type and shape that the run
        /// produces.</param>
        /// <param name="options">Settings for this run.</param>
        /// <exception cref="System.ArgumentNullException">When an argument but the last is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void Run(
            IReadOnlyCollection<string> inputNames, IReadOnlyCollection<FixedBufferOnnxValue> inputValues,
            IReadOnlyCollection<NamedOnnxValue> outputs, RunOptions options)
        {
            using (var taken = new NamedValues(outputs, nameof(outputs)))
            {
                ForwardRun.RunInto(
                    Live, options, inputNames, FixedBufferOnnxValue.ValuesOf(inputValues, nameof(inputValues)), taken.Names, taken.Values);
            }
        }

        /// <summary>Runs the model on another thread and writes the outputs into the caller's tensors.</summary>
        /// <param name="options">Settings for this run.</param>
        /// <param name="inputNames">Names of the inputs.</param>
        /// <param name="inputValues">The inputs, in the order of their names. No input may be disposed of before the
        /// run has ended.</param>
        /// <param name="outputNames">Names of the wanted outputs.</param>
        /// <param name="outputValues">Tensors that receive the outputs, in the order of their names.</param>
        /// <returns>A task whose result is <paramref name="outputValues"/>. It fails with the error of the
        /// run.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public Task<IReadOnlyCollection<OrtValue>> RunAsync(
            RunOptions options, IReadOnlyCollection<string> inputNames, IReadOnlyCollection<OrtValue> inputValues,
            IReadOnlyCollection<string> outputNames, IReadOnlyCollection<OrtValue> outputValues)
        {
            OrtSessionHandle session = Live;
            return Task.Run(() =>
            {
                ForwardRun.RunInto(session, options, inputNames, inputValues, outputNames, outputValues);
                return outputValues;
            });
        }

        /// <summary>Creates a binding of inputs and outputs.</summary>
        /// <returns>An empty binding. Dispose of it before the session.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtIoBinding CreateIoBinding()
        {
            return new OrtIoBinding(Live);
        }

        /// <summary>Runs the model on the bound values.</summary>
        /// <param name="runOptions">Settings for this run.</param>
        /// <param name="ioBinding">The inputs and outputs.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="ioBinding"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void RunWithBinding(RunOptions runOptions, OrtIoBinding ioBinding)
        {
            NativeStatus.ThrowOnError(OrtApi.RunWithBinding(
                Live, runOptions == null ? RunOptions.None : runOptions.Live,
                Arguments.NotNull(ioBinding, nameof(ioBinding)).Live));
        }

        /// <summary>Runs the model on the bound values, and returns the bound outputs.</summary>
        /// <param name="runOptions">Settings for this run.</param>
        /// <param name="ioBinding">The inputs and outputs.</param>
        /// <returns>The outputs, in the order in which they were bound. The caller disposes of them.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="ioBinding"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public IDisposableReadOnlyCollection<OrtValue> RunWithBoundResults(RunOptions runOptions, OrtIoBinding ioBinding)
        {
            RunWithBinding(runOptions, ioBinding);
            return ioBinding.GetOutputValues();
        }

        /// <summary>Runs the model on the bound values, and returns the bound outputs with names.</summary>
        /// <param name="runOptions">Settings for this run.</param>
        /// <param name="ioBinding">The inputs and outputs.</param>
        /// <param name="names">Names for the outputs, in the order in which they were bound; by default the names of
        /// the outputs.</param>
        /// <returns>The outputs, in the order in which they were bound. The caller disposes of them.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="ioBinding"/> is null.</exception>
        /// <exception cref="System.ArgumentException">When there are not as many names as outputs.</exception>
        /// <exception cref="OnnxRuntimeException">As for the other runs.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public IDisposableReadOnlyCollection<DisposableNamedOnnxValue> RunWithBindingAndNames(
            RunOptions runOptions, OrtIoBinding ioBinding, string[] names = null)
        {
            RunWithBinding(runOptions, ioBinding);
            string[] bound = names ?? ioBinding.GetOutputNames();
            IDisposableReadOnlyCollection<OrtValue> values = ioBinding.GetOutputValues();
            var named = new DisposableList<DisposableNamedOnnxValue>(bound.Length);
            try
            {
                Arguments.SameCount(values.Count, "the outputs", bound.Length, nameof(names));
                foreach (OrtValue value in values)
                {
                    named.Add(DisposableNamedOnnxValue.CreateFromOrtValue(bound[named.Count], value));
                }
                return named;
            }
            catch
            {
                values.Dispose();
                throw;
            }
        }
    }
}
