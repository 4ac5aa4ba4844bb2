using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>Arithmetic of the dimensions that sessions return.</summary>
    public static class ShapeUtils
    {
        /// <summary>Number of elements of a tensor.</summary>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <returns>The product of the dimensions.</returns>
        /// <exception cref="ArgumentOutOfRangeException">When a dimension is negative.</exception>
        /// <exception cref="OverflowException">When there are too many elements.</exception>
        public static long GetSizeForShape(ReadOnlySpan<long> shape)
        {
            long size = 1;
            for (int i = 0; i < shape.Length; ++i)
            {
                if (shape[i] < 0)
                {
                    throw new ArgumentOutOfRangeException(
                        nameof(shape), shape[i], "dimension " + i + " is negative, expected 0 or more");
                }
                size = checked(size * shape[i]);
            }
            return size;
        }

        /// <summary>The strides of a row-major tensor.</summary>
        /// <param name="dimensions">The dimensions.</param>
        /// <returns>For each dimension, the distance in elements between neighbors along it.</returns>
        public static long[] GetStrides(ReadOnlySpan<long> dimensions)
        {
            var strides = new long[dimensions.Length];
            long stride = 1;
            for (int i = dimensions.Length - 1; i >= 0; --i)
            {
                strides[i] = stride;
                stride = checked(stride * dimensions[i]);
            }
            return strides;
        }

        /// <summary>Offset in memory of an element.</summary>
        /// <param name="strides">The strides.</param>
        /// <param name="indices">Its index along each dimension.</param>
        /// <param name="startFromDimension">The first dimension that counts.</param>
        /// <returns>The sum of the products of indices and strides.</returns>
        /// <exception cref="ArgumentException">When there are not as many indices as strides.</exception>
        public static long GetIndex(
            ReadOnlySpan<long> strides, ReadOnlySpan<long> indices, int startFromDimension = 0)
        {
            if (strides.Length != indices.Length)
            {
                throw new ArgumentException(
                    indices.Length + " indices were given, expected as many as strides, " + strides.Length,
                    nameof(indices));
            }
            long index = 0;
            for (int i = startFromDimension; i < indices.Length; ++i)
            {
                index = checked(index + strides[i] * indices[i]);
            }
            return index;
        }
    }
}
