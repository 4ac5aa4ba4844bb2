namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>What a run takes, and writes its outputs into: a value, or a buffer with one.</summary>
    internal interface IRunValue
    {
        /// <summary>The native value; an exception if it was disposed.</summary>
        OrtValueHandle Live { get; }
    }
}
