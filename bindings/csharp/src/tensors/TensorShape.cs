using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>Arithmetic of dimensions, strides and indices.</summary>
    internal static class TensorShape
    {
        /// <summary>The dimensions of an array.</summary>
        internal static int[] Of(Array array, string name)
        {
            Arguments.NotNull(array, name);
            var dimensions = new int[array.Rank];
            for (int i = 0; i < dimensions.Length; ++i)
            {
                dimensions[i] = array.GetLength(i);
            }
            return dimensions;
        }

        /// <summary>The product of dimensions; throws for a negative one and for more elements than an array can
        /// have.</summary>
        internal static int Length(ReadOnlySpan<int> dimensions, string name)
        {
            long length = 1;
            for (int i = 0; i < dimensions.Length; ++i)
            {
                if (dimensions[i] < 0)
                {
                    throw new ArgumentOutOfRangeException(
                        name, dimensions[i], "dimension " + i + " of the shape " + Text(dimensions) +
                        " is negative, expected 0 or more");
                }
                length *= dimensions[i];
                if (length > int.MaxValue)
                {
                    throw new ArgumentOutOfRangeException(
                        name, "the shape " + Text(dimensions) + " has too many elements, expected at most " +
                        int.MaxValue);
                }
            }
            return (int)length;
        }

        /// <summary>The stride of each dimension.</summary>
        /// <param name="dimensions">The dimensions.</param>
        /// <param name="columnsFirst">Whether the first index varies fastest instead of the last.</param>
        internal static int[] Strides(ReadOnlySpan<int> dimensions, bool columnsFirst)
        {
            var strides = new int[dimensions.Length];
            int stride = 1;
            for (int i = 0; i < dimensions.Length; ++i)
            {
                int d = columnsFirst ? i : dimensions.Length - 1 - i;
                strides[d] = stride;
                stride *= dimensions[d];
            }
            return strides;
        }

        /// <summary>Offset in memory of an element; throws if there is no such element.</summary>
        internal static int Offset(ReadOnlySpan<int> dimensions, int[] strides, ReadOnlySpan<int> indices)
        {
            if (indices.Length != dimensions.Length)
            {
                throw new ArgumentException(
                    indices.Length + " indices were given, expected " + dimensions.Length + " for the shape " +
                    Text(dimensions),
                    nameof(indices));
            }
            int offset = 0;
            for (int i = 0; i < indices.Length; ++i)
            {
                if ((uint)indices[i] >= (uint)dimensions[i])
                {
                    throw new IndexOutOfRangeException(
                        "index " + i + " is " + indices[i] + ", expected one from 0 to " + (dimensions[i] - 1) +
                        " for the shape " + Text(dimensions));
                }
                offset += indices[i] * strides[i];
            }
            return offset;
        }

        /// <summary>Offset in memory of the element at a position when the last index varies
        /// fastest.</summary>
        internal static int OffsetOfPosition(int[] dimensions, int[] strides, int position)
        {
            int offset = 0;
            for (int d = dimensions.Length - 1; d >= 0; --d)
            {
                offset += position % dimensions[d] * strides[d];
                position /= dimensions[d];
            }
            return offset;
        }

        /// <summary>The dimensions as a string such as [2,3].</summary>
        internal static string Text(ReadOnlySpan<int> dimensions)
        {
            return "[" + string.Join(",", dimensions.ToArray()) + "]";
        }
    }
}
