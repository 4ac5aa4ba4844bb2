using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>Diagonals and triangles of tensors, over their first two dimensions.</summary>
    internal static class TensorTriangles
    {
        internal static Tensor<T> Diagonal<T>(Tensor<T> source, int offset)
        {
            RequireMatrix(source, "GetDiagonal");
            int rows = source.dimensions[0], columns = source.dimensions[1];
            int length = offset >= 0 ? Math.Min(rows, columns - offset) : Math.Min(rows + offset, columns);
            if (length <= 0)
            {
                throw new ArgumentException(
                    "GetDiagonal: the offset is " + offset + ", expected one from " + (1 - rows) + " to " +
                    (columns - 1) + " for the shape " + TensorShape.Text(source.dimensions),
                    nameof(offset));
            }
            var dimensions = new int[source.Rank - 1];
            Array.Copy(source.dimensions, 1, dimensions, 0, dimensions.Length);
            dimensions[0] = length;
            Tensor<T> diagonal = source.CloneEmpty(dimensions);
            CopyDiagonal(diagonal, source, offset, false);
            return diagonal;
        }

        internal static Tensor<T> Triangle<T>(Tensor<T> source, int offset, bool upper)
        {
            RequireMatrix(source, "GetTriangle");
            Tensor<T> triangle = source.CloneEmpty();
            var index = new int[source.Rank];
            for (int i = 0; i < source.Length; ++i)
            {
                int distance = index[1] - index[0];
                if (upper ? distance >= offset : distance <= offset)
                {
                    triangle[index] = source[index];
                }
                Advance(index, source.dimensions);
            }
            return triangle;
        }

        /// <summary>Copies between a tensor of diagonal elements and the diagonal of another.</summary>
        internal static void CopyDiagonal<T>(Tensor<T> diagonal, Tensor<T> matrix, int offset, bool toMatrix)
        {
            var at = new int[diagonal.Rank];
            var index = new int[matrix.Rank];
            for (int i = 0; i < diagonal.Length; ++i)
            {
                index[0] = at[0] + Math.Max(0, -offset);
                index[1] = at[0] + Math.Max(0, offset);
                Array.Copy(at, 1, index, 2, at.Length - 1);
                if (toMatrix)
                {
                    matrix[index] = diagonal[at];
                }
                else
                {
                    diagonal[at] = matrix[index];
                }
                Advance(at, diagonal.dimensions);
            }
        }

        private static void RequireMatrix<T>(Tensor<T> source, string method)
        {
            if (source.Rank < 2)
            {
                throw new InvalidOperationException(
                    method + ": the tensor has rank " + source.Rank + ", expected 2 or more");
            }
        }

        private static void Advance(int[] index, int[] dimensions)
        {
            for (int d = index.Length - 1; d >= 0 && ++index[d] == dimensions[d]; --d)
            {
                index[d] = 0;
            }
        }
    }
}
