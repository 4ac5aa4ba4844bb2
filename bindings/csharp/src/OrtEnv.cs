using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Receives a log message. The texts are in UTF-8 and valid during the call.</summary>
    /// <param name="param">The pointer that the environment was created with.</param>
    /// <param name="severity">Severity of the message.</param>
    /// <param name="category">The part of the library that logs the message.</param>
    /// <param name="logId">The name of the environment or session.</param>
    /// <param name="codeLocation">The call that was running.</param>
    /// <param name="message">The message.</param>
    [UnmanagedFunctionPointer(CallingConvention.Winapi)]
    public delegate void DOrtLoggingFunction(
        IntPtr param, OrtLoggingLevel severity, IntPtr category, IntPtr logId, IntPtr codeLocation, IntPtr message);

    /// <summary>Settings of the process environment.</summary>
    public struct EnvironmentCreationOptions
    {
        /// <summary>The name that appears in log messages; null for "ortrain".</summary>
        public string logId;

        /// <summary>The minimum severity that is logged; null for warnings.</summary>
        public OrtLoggingLevel? logLevel;

        /// <summary>Threads that sessions share if they are created with DisablePerSessionThreads; null for
        /// none.</summary>
        public OrtThreadingOptions threadOptions;

        /// <summary>A pointer that the function receives with each message; null for none.</summary>
        public IntPtr? loggingParam;

        /// <summary>Receives log messages; null for standard error.</summary>
        public DOrtLoggingFunction loggingFunction;
    }

    public sealed partial class OrtEnv
    {
        private const OrtLoggingLevel DefaultLogLevel = OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING;
        private const string DefaultLogId = "ortrain";

        private static readonly object Gate = new object();
        private static volatile OrtEnv instance;

        // The library keeps the address of the function, so this object must live as long as the environment.
        private readonly DOrtLoggingFunction logger;

        private OrtEnv(EnvironmentCreationOptions options)
            : base(IntPtr.Zero, true)
        {
            OrtLoggingLevel level = options.logLevel ?? DefaultLogLevel;
            byte[] id = NativeText.Utf8(options.logId ?? DefaultLogId, nameof(options.logId));
            OrtThreadingOptions threads = options.threadOptions;
            logger = options.loggingFunction;
            IntPtr environment;
            if (logger != null)
            {
                IntPtr function = Marshal.GetFunctionPointerForDelegate(logger);
                IntPtr parameter = options.loggingParam ?? IntPtr.Zero;
                NativeStatus.ThrowOnError(
                    threads == null
                        ? OrtApi.CreateEnvWithCustomLogger(function, parameter, level, id, out environment)
                        : OrtApi.CreateEnvWithCustomLoggerAndGlobalThreadPools(
                            function, parameter, level, id, threads.Live, out environment));
            }
            else
            {
                NativeStatus.ThrowOnError(
                    threads == null ? OrtApi.CreateEnv(level, id, out environment)
                                    : OrtApi.CreateEnvWithGlobalThreadPools(level, id, threads.Live, out environment));
            }
            envLogLevel = level;
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
                        instance = new OrtEnv(default(EnvironmentCreationOptions));
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
                return instance = new OrtEnv(options);
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

        /// <summary>Registers an allocator that the sessions of the process share.</summary>
        /// <param name="memInfo">Location of the memory.</param>
        /// <param name="arenaCfg">Settings of the allocator's arena, which have no effect; null for none.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memInfo"/> is null.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public void CreateAndRegisterAllocator(OrtMemoryInfo memInfo, OrtArenaCfg arenaCfg)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateAndRegisterAllocator(
                Live, Arguments.NotNull(memInfo, nameof(memInfo)).Live, arenaCfg == null ? IntPtr.Zero : arenaCfg.Live));
        }

        /// <summary>The execution providers, each with its device; there is only the CPU.</summary>
        /// <returns>The providers.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe IReadOnlyList<OrtEpDevice> GetEpDevices()
        {
            IntPtr devices = IntPtr.Zero;
            NativeStatus.ThrowOnError(OrtApi.GetEpDevices(Live, (IntPtr)(&devices), out UIntPtr count));
            var all = new OrtEpDevice[(int)count];
            for (int i = 0; i < all.Length; ++i)
            {
                all[i] = new OrtEpDevice(Marshal.ReadIntPtr(devices, i * IntPtr.Size));
            }
            return all;
        }

        /// <summary>Always fails: no other execution providers can be loaded.</summary>
        /// <param name="registrationName">A name for the library.</param>
        /// <param name="libraryPath">The library.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">Always: the message names the provider that exists.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void RegisterExecutionProviderLibrary(string registrationName, string libraryPath)
        {
            NativeStatus.ThrowOnError(OrtApi.RegisterExecutionProviderLibrary(
                Live, NativeText.Utf8(registrationName, nameof(registrationName)),
                NativeText.Path(libraryPath, nameof(libraryPath))));
        }

        /// <summary>Always fails: no library of execution providers is registered.</summary>
        /// <param name="registrationName">Its name.</param>
        /// <exception cref="System.ArgumentNullException">When the name is null.</exception>
        /// <exception cref="OnnxRuntimeException">Always.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void UnregisterExecutionProviderLibrary(string registrationName)
        {
            NativeStatus.ThrowOnError(OrtApi.UnregisterExecutionProviderLibrary(
                Live, NativeText.Utf8(registrationName, nameof(registrationName))));
        }
    }
}
