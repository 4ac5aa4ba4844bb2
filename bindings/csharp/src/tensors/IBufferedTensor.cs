namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>A tensor that has a buffer, whatever the type of its elements.</summary>
    internal interface IBufferedTensor
    {
        /// <summary>A value over the buffer.</summary>
        /// <returns>The value, which keeps the buffer pinned until it is disposed of.</returns>
        OrtValue CreateOrtValue();
    }
}
