namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>What kind a value is, and for tensors their element type and extents.</summary>
    public struct OrtTypeInfo
    {
        internal OrtTypeInfo(OnnxValueType kind, OrtTensorTypeAndShapeInfo tensor)
        {
            OnnxType = kind;
            TensorTypeAndShapeInfo = tensor;
        }

        /// <summary>The kind.</summary>
        public OnnxValueType OnnxType { get; }

        /// <summary>Element type and extents.</summary>
        public OrtTensorTypeAndShapeInfo TensorTypeAndShapeInfo { get; }
    }
}
