using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Settings of the process environment.</summary>
    public struct EnvironmentCreationOptions
    {
        /// <summary>The name that appears in log messages; null for "ortrain".</summary>
        public string logId;

        /// <summary>The minimum severity that is logged; null for warnings.</summary>
        public OrtLoggingLevel? logLevel;
    }

    public sealed partial class OrtEnv
    {
        private const OrtLoggingLevel DefaultLogLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING;
        private const string DefaultLogId = "ortrain";

        private static readonly object Gate = new object();
        private static volatile OrtEnv instance;

        private OrtEnv(OrtLoggingLevel logLevel, string logId)
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(
                OrtApi.CreateEnv(logLevel, NativeText.Utf8(logId, nameof(logId)), out IntPtr environment));
            envLogLevel = logLevel;
            SetHandle(environment);
        }

        /// <summary>Whether there is an environment.</summary>
        public static bool IsCreated
        {
            get
            {
                OrtEnv present = instance;
                return present != null && !present.IsClosed;
            }
        }

        /// <summary>The environment of the process; it is created if there is none.</summary>
        /// <returns>The environment.</returns>
        public static OrtEnv Instance()
        {
            if (!IsCreated)
            {
                lock (Gate)
                {
                    if (!IsCreated)
                    {
                        instance = new OrtEnv(DefaultLogLevel, DefaultLogId);
                    }
                }
            }
            return instance;
        }

        /// <summary>Creates the environment of the process with settings.</summary>
        /// <param name="options">The settings.</param>
        /// <returns>The environment.</returns>
        /// <exception cref="OnnxRuntimeException">RuntimeException when there is an environment
        /// already.</exception>
        public static OrtEnv CreateInstanceWithOptions(ref EnvironmentCreationOptions options)
        {
            lock (Gate)
            {
                if (IsCreated)
                {
                    throw new OnnxRuntimeException(
                        ErrorCode.RuntimeException,
                        "CreateInstanceWithOptions: the process already has an environment, expected none; call it " +
                        "before anything else");
                }
                return instance = new OrtEnv(options.logLevel ?? DefaultLogLevel, options.logId ?? DefaultLogId);
            }
        }

        /// <summary>The version of the library.</summary>
        /// <returns>The onnxruntime version whose interface is provided, then + and the version of this
        /// library.</returns>
        public string GetVersionString()
        {
            return NativeTables.Version;
        }

        /// <summary>Names of the available execution providers.</summary>
        /// <returns>The names.</returns>
        public unsafe string[] GetAvailableProviders()
        {
            NativeStatus.ThrowOnError(OrtApi.GetAvailableProviders(out IntPtr names, out int count));
            try
            {
                var providers = new string[count];
                for (int i = 0; i < count; ++i)
                {
                    providers[i] = NativeText.Read(Marshal.ReadIntPtr(names, i * IntPtr.Size));
                }
                return providers;
            }
            finally
            {
                NativeStatus.ThrowOnError(OrtApi.ReleaseAvailableProviders((IntPtr*)names, count));
            }
        }
    }
}
