using System;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Element type and dimensions of a tensor, or of an input or output of a model.</summary>
    public struct OrtTensorTypeAndShapeInfo
    {
        private OrtTensorTypeAndShapeInfo(TensorElementType type, long[] shape)
        {
            ElementDataType = type;
            Shape = shape;
        }

        /// <summary>Type of the elements.</summary>
        public TensorElementType ElementDataType { get; }

        /// <summary>The dimensions, with -1 for unknown dimensions.</summary>
        public long[] Shape { get; }

        /// <summary>Whether the elements are strings.</summary>
        public bool IsString => ElementDataType == TensorElementType.String;

        /// <summary>The rank.</summary>
        public int DimensionsCount => Shape.Length;

        /// <summary>Number of elements, the product of the dimensions.</summary>
        /// <exception cref="System.InvalidOperationException">When a dimension is unknown.</exception>
        public long ElementCount
        {
            get
            {
                long count = 1;
                foreach (long dimension in Shape)
                {
                    if (dimension < 0)
                    {
                        throw new InvalidOperationException(
                            "ElementCount: the shape " + this + " has an unknown dimension, expected known ones");
                    }
                    count = checked(count * dimension);
                }
                return count;
            }
        }

        /// <summary>Type and dimensions as a string.</summary>
        /// <returns>A text such as Float[8,10].</returns>
        public override string ToString()
        {
            return ElementDataType + "[" + string.Join(",", Shape) + "]";
        }

        /// <summary>The contents of a native description, which stays with its owner.</summary>
        internal static unsafe OrtTensorTypeAndShapeInfo Read(IntPtr info)
        {
            NativeStatus.ThrowOnError(OrtApi.GetTensorElementType(info, out TensorElementType type));
            NativeStatus.ThrowOnError(OrtApi.GetDimensionsCount(info, out UIntPtr rank));
            var shape = new long[(int)rank];
            fixed (long* first = shape)
            {
                long none = 0;
                NativeStatus.ThrowOnError(OrtApi.GetDimensions(info, shape.Length == 0 ? &none : first, rank));
            }
            return new OrtTensorTypeAndShapeInfo(type, shape);
        }

        /// <summary>The contents of a native description, which is released.</summary>
        internal static OrtTensorTypeAndShapeInfo Take(IntPtr info)
        {
            try
            {
                return Read(info);
            }
            finally
            {
                OrtApi.ReleaseTensorTypeAndShapeInfo(info);
            }
        }
    }
}
