using System;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A call failed. The message says what was being done, what was expected and what was
    /// found.</summary>
    public class OnnxRuntimeException : Exception
    {
        internal OnnxRuntimeException(ErrorCode errorCode, string message)
            : base(message)
        {
            ErrorCode = errorCode;
        }

        /// <summary>Why it failed.</summary>
        public ErrorCode ErrorCode { get; }
    }
}
