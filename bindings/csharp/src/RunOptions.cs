using System;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class RunOptions
    {
        /// <summary>No options: a null pointer for a call. Never disposed of.</summary>
        internal static readonly RunOptions None = new RunOptions(IntPtr.Zero);
    }
}
