namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>A tensor that has a buffer, with elements of any type.</summary>
    internal interface IBufferedTensor
    {
        /// <summary>A value over the buffer.</summary>
        /// <returns>The value, which keeps the buffer pinned until it is disposed of.</returns>
        OrtValue CreateOrtValue();
    }
}
