namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The kind of a value, and for tensors their element type and dimensions.</summary>
    public struct OrtTypeInfo
    {
        internal OrtTypeInfo(OnnxValueType kind, OrtTensorTypeAndShapeInfo tensor)
        {
            OnnxType = kind;
            TensorTypeAndShapeInfo = tensor;
        }

        /// <summary>The kind.</summary>
        public OnnxValueType OnnxType { get; }

        /// <summary>Element type and dimensions.</summary>
        public OrtTensorTypeAndShapeInfo TensorTypeAndShapeInfo { get; }
    }
}
