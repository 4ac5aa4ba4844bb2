using System;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A call failed. The message begins with the code, as in "[ErrorCode:InvalidArgument] ", and says
    /// what was being done, what was expected and what was found.</summary>
    public class OnnxRuntimeException : Exception
    {
        internal OnnxRuntimeException(ErrorCode errorCode, string message)
            : base("[ErrorCode:" + errorCode + "] " + message)
        {
            ErrorCode = errorCode;
        }

        /// <summary>The code of the failure.</summary>
        public ErrorCode ErrorCode { get; }
    }
}
