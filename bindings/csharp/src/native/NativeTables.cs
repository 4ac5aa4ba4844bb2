using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Access to the native library: its tables of calls, and the calls in their slots.</summary>
    /// <remarks>
    /// The library is named <c>ortrain</c>, which the runtime completes to libortrain.so, libortrain.dylib or
    /// ortrain.dll and searches for like every native library: in the runtimes folder of a
    /// package, next to the assembly, and on the system's library path (LD_LIBRARY_PATH on Linux).
    /// </remarks>
    internal static class NativeTables
    {
        private const string LibraryName = "ortrain";
        private const string ExtensionsName = "ortextensions";
        private const int GetApiSlot = 0;
        private const int GetVersionStringSlot = 1;

        private static IntPtr ortApiBase;
        private static IntPtr ortApi;
        private static IntPtr ortTrainingApi;
        private static IntPtr ortrainApi;
        private static IntPtr ortCompileApi;

        [DllImport(LibraryName, CallingConvention = CallingConvention.Winapi, ExactSpelling = true)]
        private static extern IntPtr OrtGetApiBase();

        [DllImport(LibraryName, CallingConvention = CallingConvention.Winapi, ExactSpelling = true)]
        private static extern IntPtr OrtrainGetApi(uint version);

        [DllImport(ExtensionsName, CallingConvention = CallingConvention.Winapi, ExactSpelling = true)]
        private static extern IntPtr RegisterCustomOps(SessionOptions options, IntPtr apiBase);

        [UnmanagedFunctionPointer(CallingConvention.Winapi)]
        private delegate IntPtr GetApiCall(uint version);

        [UnmanagedFunctionPointer(CallingConvention.Winapi)]
        private delegate IntPtr GetVersionStringCall();

        /// <summary>The table of general calls.</summary>
        internal static IntPtr OrtApi
        {
            get
            {
                if (ortApi == IntPtr.Zero)
                {
                    ortApi = Found(Bind<GetApiCall>(ApiBase, GetApiSlot)(ApiVersion.Ort), "OrtApi", ApiVersion.Ort);
                }
                return ortApi;
            }
        }

        /// <summary>The table of training calls.</summary>
        internal static IntPtr OrtTrainingApi
        {
            get
            {
                if (ortTrainingApi == IntPtr.Zero)
                {
                    IntPtr table = OnnxRuntime.OrtApi.GetTrainingApi(ApiVersion.Ort);
                    ortTrainingApi = Found(table, "OrtTrainingApi", ApiVersion.Ort);
                }
                return ortTrainingApi;
            }
        }

        /// <summary>The table of calls that compile models.</summary>
        internal static IntPtr OrtCompileApi
        {
            get
            {
                if (ortCompileApi == IntPtr.Zero)
                {
                    ortCompileApi = Found(OnnxRuntime.OrtApi.GetCompileApi(), "OrtCompileApi", ApiVersion.Ort);
                }
                return ortCompileApi;
            }
        }

        /// <summary>The table of calls that onnxruntime's tables lack.</summary>
        internal static IntPtr OrtrainApi
        {
            get
            {
                if (ortrainApi == IntPtr.Zero)
                {
                    ortrainApi = Found(OrtrainGetApi(ApiVersion.Ortrain), "OrtrainApi", ApiVersion.Ortrain);
                }
                return ortrainApi;
            }
        }

        /// <summary>The version of the native library.</summary>
        internal static string Version =>
            NativeText.Read(Bind<GetVersionStringCall>(ApiBase, GetVersionStringSlot)());

        private static IntPtr ApiBase
        {
            get
            {
                if (ortApiBase == IntPtr.Zero)
                {
                    try
                    {
                        ortApiBase = OrtGetApiBase();
                    }
                    catch (DllNotFoundException missing)
                    {
                        throw new DllNotFoundException(
                            "The native library 'ortrain' (libortrain.so, libortrain.dylib or ortrain.dll) was not " +
                            "found, expected beside the assembly Microsoft.ML.OnnxRuntime.dll or on the system's " +
                            "library path: " + missing.Message,
                            missing);
                    }
                }
                return ortApiBase;
            }
        }

        /// <summary>Lets the library onnxruntime-extensions add its operators to options.</summary>
        internal static void RegisterExtensions(SessionOptions options)
        {
            try
            {
                NativeStatus.ThrowOnError(RegisterCustomOps(options, ApiBase));
            }
            catch (DllNotFoundException missing)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.NoSuchFile,
                    "RegisterOrtExtensions: the native library 'ortextensions' was not found; expected the package " +
                    "Microsoft.ML.OnnxRuntime.Extensions in the program: " + missing.Message);
            }
        }

        /// <summary>The call in a slot of a table.</summary>
        internal static T Bind<T>(IntPtr table, int slot)
        {
            IntPtr function = Marshal.ReadIntPtr(table, slot * IntPtr.Size);
            return Marshal.GetDelegateForFunctionPointer<T>(function);
        }

        private static IntPtr Found(IntPtr table, string name, uint version)
        {
            if (table == IntPtr.Zero)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.NotImplemented,
                    "The native library 'ortrain' has no table " + name + " of version " + version +
                    ", its version is " + Version + "; expected a library that is not older than this assembly (" +
                    ApiVersion.Library + ")");
            }
            return table;
        }
    }
}
