using System;
using System.Collections.Generic;
using System.Linq;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class SessionOptions
    {
        /// <summary>Selects the devices of a session.</summary>
        /// <param name="epDevices">All devices.</param>
        /// <param name="modelMetadata">Metadata of the model.</param>
        /// <param name="runtimeMetadata">Metadata of the library.</param>
        /// <param name="maxSelections">The maximum number of devices to select.</param>
        /// <returns>The devices.</returns>
        public delegate List<OrtEpDevice> EpSelectionDelegate(
            IReadOnlyList<OrtEpDevice> epDevices, OrtKeyValuePairs modelMetadata, OrtKeyValuePairs runtimeMetadata,
            uint maxSelections);

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
        /// <param name="useArena">Any number except 0 for an arena of memory, like <see
        /// cref="EnableCpuMemArena"/>.</param>
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

        /// <summary>The path of the recording without the date, which the library appends. It has an effect while
        /// profiling is enabled.</summary>
        /// <exception cref="System.ArgumentNullException">When the path is set to null.</exception>
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

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="cudaProviderOptions">Settings of the provider. There are none.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_CUDA(OrtCUDAProviderOptions cudaProviderOptions)
        {
            NativeStatus.ThrowOnError(OrtApi.SessionOptionsAppendExecutionProvider_CUDA_V2(Live, IntPtr.Zero));
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="rocmProviderOptions">Settings of the provider. There are none.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_ROCm(OrtROCMProviderOptions rocmProviderOptions)
        {
            NativeStatus.ThrowOnError(OrtApi.SessionOptionsAppendExecutionProvider_ROCM(Live, IntPtr.Zero));
        }

        /// <summary>Requests a provider that does not exist here.</summary>
        /// <param name="trtProviderOptions">Settings of the provider. There are none.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void AppendExecutionProvider_Tensorrt(OrtTensorRTProviderOptions trtProviderOptions)
        {
            NativeStatus.ThrowOnError(OrtApi.SessionOptionsAppendExecutionProvider_TensorRT_V2(Live, IntPtr.Zero));
        }

        /// <summary>Requests devices.</summary>
        /// <param name="env">The environment.</param>
        /// <param name="epDevices">Devices of <see cref="OrtEnv.GetEpDevices"/>.</param>
        /// <param name="epOptions">Settings of the provider; null for none. Those of the CPU are ignored.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="env"/> or <paramref
        /// name="epDevices"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there are no devices in the list.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public unsafe void AppendExecutionProvider(
            OrtEnv env, IReadOnlyList<OrtEpDevice> epDevices, IReadOnlyDictionary<string, string> epOptions)
        {
            Arguments.NotNull(env, nameof(env));
            IntPtr[] devices = Arguments.NotNull(epDevices, nameof(epDevices))
                .Select(device => Arguments.NotNull(device, nameof(epDevices)).Pointer).ToArray();
            IReadOnlyDictionary<string, string> settings = epOptions ?? new Dictionary<string, string>();
            using (var keys = new NativeTexts(settings.Keys.ToArray(), nameof(epOptions)))
            using (var values = new NativeTexts(settings.Values.ToArray(), nameof(epOptions)))
            fixed (IntPtr* first = devices)
            {
                NativeStatus.ThrowOnError(OrtApi.SessionOptionsAppendExecutionProvider_V2(
                    Live, env.Live, (IntPtr)first, (UIntPtr)devices.Length, keys.Pointers, values.Pointers,
                    (UIntPtr)keys.Count));
            }
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithCudaProvider(int deviceId = 0)
        {
            return MakeWith(options => options.AppendExecutionProvider_CUDA(deviceId));
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="cudaProviderOptions">Settings of the provider. There are none.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithCudaProvider(OrtCUDAProviderOptions cudaProviderOptions)
        {
            return MakeWith(options => options.AppendExecutionProvider_CUDA(cudaProviderOptions));
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithRocmProvider(int deviceId = 0)
        {
            return MakeWith(options => options.AppendExecutionProvider_ROCm(deviceId));
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="rocmProviderOptions">Settings of the provider. There are none.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithRocmProvider(OrtROCMProviderOptions rocmProviderOptions)
        {
            return MakeWith(options => options.AppendExecutionProvider_ROCm(rocmProviderOptions));
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="deviceId">Number of the device.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithTensorrtProvider(int deviceId = 0)
        {
            return MakeWith(options => options.AppendExecutionProvider_Tensorrt(deviceId));
        }

        /// <summary>Creates options for a provider that does not exist here.</summary>
        /// <param name="trtProviderOptions">Settings of the provider. There are none.</param>
        /// <returns>Nothing: it fails.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public static SessionOptions MakeSessionOptionWithTensorrtProvider(OrtTensorRTProviderOptions trtProviderOptions)
        {
            return MakeWith(options => options.AppendExecutionProvider_Tensorrt(trtProviderOptions));
        }

        /// <summary>Fails if a function is given, because there is only one device to select.</summary>
        /// <param name="selectionDelegate">The function; null, which has no effect, for none.</param>
        /// <exception cref="OnnxRuntimeException">NotImplemented when it is not null.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SetEpSelectionPolicyDelegate(EpSelectionDelegate selectionDelegate = null)
        {
            SetEpSelectionPolicy(ExecutionProviderDevicePolicy.DEFAULT);
            if (selectionDelegate != null)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.NotImplemented,
                    "SetEpSelectionPolicyDelegate: there is one device to select, that of " +
                    OrtEnv.Instance().GetAvailableProviders()[0]);
            }
        }

        /// <summary>Loads a library of custom operators for sessions with these options.</summary>
        /// <param name="libraryPath">The library, which has a function RegisterCustomOps. It stays
        /// loaded.</param>
        /// <param name="libraryHandle">The loaded library.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="libraryPath"/> is
        /// null.</exception>
        /// <exception cref="OnnxRuntimeException">Fail when the library cannot be loaded, or has no such
        /// function.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void RegisterCustomOpLibraryV2(string libraryPath, out IntPtr libraryHandle)
        {
            NativeStatus.ThrowOnError(OrtApi.RegisterCustomOpsLibrary(
                Live, NativeText.Utf8(libraryPath, nameof(libraryPath)), out libraryHandle));
        }

        /// <summary>Adds the operators of onnxruntime-extensions, a separate library.</summary>
        /// <exception cref="OnnxRuntimeException">NoSuchFile when the library is not found: the program needs the
        /// package Microsoft.ML.OnnxRuntime.Extensions.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void RegisterOrtExtensions()
        {
            NativeTables.RegisterExtensions(Live);
        }

        private static SessionOptions MakeWith(Action<SessionOptions> append)
        {
            var options = new SessionOptions();
            try
            {
                append(options);
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
