using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class SessionOptions
    {
        private static SessionOptions defaultOptions;

        /// <summary>The options of sessions that are created without any. Never disposed of.</summary>
        internal static SessionOptions Default => defaultOptions ?? (defaultOptions = new SessionOptions());

        /// <summary>Requests an execution provider by name.</summary>
        /// <param name="providerName">Its name. Only CPUExecutionProvider, also called CPU, exists.</param>
        /// <param name="providerOptions">Settings of the provider; those of the CPU are
        /// ignored.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="providerName"/> is
        /// null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such provider; the message
        /// lists those that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe void AppendExecutionProvider(
            string providerName, Dictionary<string, string> providerOptions = null)
        {
            Dictionary<string, string> settings = providerOptions ?? new Dictionary<string, string>();
            using (var keys = new NativeTexts(settings.Keys, nameof(providerOptions)))
            using (var values = new NativeTexts(settings.Values, nameof(providerOptions)))
            {
                NativeStatus.ThrowOnError(OrtApi.SessionOptionsAppendExecutionProvider(
                    Live, NativeText.Utf8(providerName, nameof(providerName)), keys.Pointers, values.Pointers,
                    (UIntPtr)keys.Count));
            }
        }

        /// <summary>Requests the CPU provider, which every session has anyway.</summary>
        /// <param name="useArena">Not 0 for an arena of memory; as <see cref="EnableCpuMemArena"/>.</param>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_CPU(int useArena = 1)
        {
            AppendExecutionProvider("CPU");
            EnableCpuMemArena = useArena != 0;
        }

        private bool enableProfiling;
        private string profileOutputPathPrefix = "onnxruntime_profile_";

        /// <summary>Whether runs are recorded in a file.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public bool EnableProfiling
        {
            get { return Live.enableProfiling; }
            set
            {
                Profile(value, profileOutputPathPrefix);
                enableProfiling = value;
            }
        }

        /// <summary>The path of the recording up to its date; it counts while profiling is enabled.</summary>
        /// <exception cref="System.ArgumentNullException">When it is set to null.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public string ProfileOutputPathPrefix
        {
            get { return Live.profileOutputPathPrefix; }
            set
            {
                Profile(enableProfiling, Arguments.NotNull(value, nameof(value)));
                profileOutputPathPrefix = value;
            }
        }

        private void Profile(bool enable, string prefix)
        {
            NativeStatus.ThrowOnError(
                enable ? OrtApi.EnableProfiling(Live, NativeText.Path(prefix, nameof(ProfileOutputPathPrefix)))
                       : OrtApi.DisableProfiling(Live));
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_CUDA(int deviceId = 0)
        {
            AppendExecutionProvider("CUDA");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_DML(int deviceId = 0)
        {
            AppendExecutionProvider("DML");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="useArena">Not 0 for an arena of memory.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_Dnnl(int useArena = 1)
        {
            AppendExecutionProvider("Dnnl");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_MIGraphX(int deviceId = 0)
        {
            AppendExecutionProvider("MIGraphX");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="nnapiFlags">Flags.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_Nnapi(NnapiFlags nnapiFlags = NnapiFlags.NNAPI_FLAG_USE_NONE)
        {
            AppendExecutionProvider("NNAPI");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="deviceId">The device.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_OpenVINO(string deviceId = "")
        {
            AppendExecutionProvider("OpenVINO");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_ROCm(int deviceId = 0)
        {
            AppendExecutionProvider("ROCM");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_Tensorrt(int deviceId = 0)
        {
            AppendExecutionProvider("TensorRT");
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="coremlFlags">Flags.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_CoreML(CoreMLFlags coremlFlags = CoreMLFlags.COREML_FLAG_USE_NONE)
        {
            AppendExecutionProvider("CoreML");
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithCudaProvider(int deviceId = 0)
        {
            var options = new SessionOptions();
            try
            {
                options.AppendExecutionProvider_CUDA(deviceId);
                return options;
            }
            catch
            {
                options.Dispose();
                throw;
            }
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithRocmProvider(int deviceId = 0)
        {
            var options = new SessionOptions();
            try
            {
                options.AppendExecutionProvider_ROCm(deviceId);
                return options;
            }
            catch
            {
                options.Dispose();
                throw;
            }
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithTensorrtProvider(int deviceId = 0)
        {
            var options = new SessionOptions();
            try
            {
                options.AppendExecutionProvider_Tensorrt(deviceId);
                return options;
            }
            catch
            {
                options.Dispose();
                throw;
            }
        }
    }
}
