namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>An input or output of a run: a value, or a buffer that has a value.</summary>
    internal interface IRunValue
    {
        /// <summary>The native value; an exception if it was disposed.</summary>
        OrtValueHandle Live { get; }
    }
}
