using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Element type and dimensions that a model declares for a tensor.</summary>
    public class TensorTypeAndShape
    {
        internal TensorTypeAndShape(TensorElementType elementDataType, int[] dimensions, string[] symbolicDimensions)
        {
            ElementDataType = elementDataType;
            Dimensions = dimensions;
            SymbolicDimensions = symbolicDimensions;
        }

        /// <summary>Type of the elements.</summary>
        public TensorElementType ElementDataType { get; }

        /// <summary>Type of the elements in C#; null if C# has no such type.</summary>
        public TensorElementTypeInfo ElementTypeInfo => TensorBase.GetElementTypeInfo(ElementDataType);

        /// <summary>The dimensions, with -1 for unknown dimensions; empty for a scalar.</summary>
        public int[] Dimensions { get; }

        /// <summary>For each dimension, its name in the model; empty if the dimension has no name.</summary>
        public string[] SymbolicDimensions { get; }
    }
}
