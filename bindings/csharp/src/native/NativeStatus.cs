using System;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The status that calls return: null for success, else a code and a message.</summary>
    internal static class NativeStatus
    {
        /// <summary>Throws a failed status as an exception, and releases it.</summary>
        internal static void ThrowOnError(IntPtr status)
        {
            if (status != IntPtr.Zero)
            {
                throw Take(status);
            }
        }

        private static OnnxRuntimeException Take(IntPtr status)
        {
            try
            {
                string message = NativeText.Read(OrtApi.GetErrorMessage(status));
                return new OnnxRuntimeException(OrtApi.GetErrorCode(status), message);
            }
            finally
            {
                OrtApi.ReleaseStatus(status);
            }
        }
    }
}
