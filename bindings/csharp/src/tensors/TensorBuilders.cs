using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>Creates tensors from few values.</summary>
    public static class Tensor
    {
        /// <summary>A square tensor with ones on its diagonal.</summary>
        /// <typeparam name="T">Type of the elements, a number.</typeparam>
        /// <param name="size">Number of rows and columns.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="NotSupportedException">When T is not a number.</exception>
        public static Tensor<T> CreateIdentity<T>(int size)
        {
            return CreateIdentity<T>(size, false);
        }

        /// <summary>A square tensor with ones on its diagonal.</summary>
        /// <typeparam name="T">Type of the elements, a number.</typeparam>
        /// <param name="size">Number of rows and columns.</param>
        /// <param name="columMajor">Whether the first index varies fastest in memory instead of the last.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="NotSupportedException">When T is not a number.</exception>
        public static Tensor<T> CreateIdentity<T>(int size, bool columMajor)
        {
            return CreateIdentity<T>(size, columMajor, One<T>());
        }

        /// <summary>A square tensor with a value on its diagonal and zeros elsewhere.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="size">Number of rows and columns.</param>
        /// <param name="columMajor">Whether the first index varies fastest in memory instead of the last.</param>
        /// <param name="oneValue">The value.</param>
        /// <returns>A new tensor.</returns>
        public static Tensor<T> CreateIdentity<T>(int size, bool columMajor, T oneValue)
        {
            var result = new DenseTensor<T>(new[] { size, size }, columMajor);
            for (int i = 0; i < size; ++i)
            {
                result.SetValue(i * (size + 1), oneValue);
            }
            return result;
        }

        /// <summary>A tensor with given values on its diagonal and zeros elsewhere.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="diagonal">The values. Its first dimension counts along the diagonal; others are those of
        /// the result too.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="diagonal"/> is null.</exception>
        /// <exception cref="ArgumentException">When it is a scalar.</exception>
        public static Tensor<T> CreateFromDiagonal<T>(Tensor<T> diagonal)
        {
            return CreateFromDiagonal(diagonal, 0);
        }

        /// <summary>A tensor with given values on one of its diagonals and zeros elsewhere.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="diagonal">The values. Its first dimension counts along the diagonal; others are those of
        /// the result too.</param>
        /// <param name="offset">How far to the right of the main diagonal; negative below it.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="diagonal"/> is null.</exception>
        /// <exception cref="ArgumentException">When it is a scalar.</exception>
        public static Tensor<T> CreateFromDiagonal<T>(Tensor<T> diagonal, int offset)
        {
            Arguments.NotNull(diagonal, nameof(diagonal));
            if (diagonal.Rank < 1)
            {
                throw new ArgumentException(
                    "CreateFromDiagonal: the diagonal is a scalar, expected rank 1 or more", nameof(diagonal));
            }
            int length = diagonal.dimensions[0];
            int size = length + Math.Abs(offset);
            var dimensions = new int[diagonal.Rank + 1];
            dimensions[0] = dimensions[1] = size;
            Array.Copy(diagonal.dimensions, 1, dimensions, 2, diagonal.Rank - 1);
            Tensor<T> result = diagonal.CloneEmpty(dimensions);
            TensorTriangles.CopyDiagonal(diagonal, result, offset, true);
            return result;
        }

        private static T One<T>()
        {
            object one;
            if (typeof(T) == typeof(Float16))
            {
                one = Float16.One;
            }
            else if (typeof(T) == typeof(BFloat16))
            {
                one = BFloat16.One;
            }
            else if (typeof(T).IsPrimitive && typeof(T) != typeof(IntPtr) && typeof(T) != typeof(UIntPtr))
            {
                one = typeof(T) == typeof(char) ? (char)1 : Convert.ChangeType(1, typeof(T));
            }
            else
            {
                throw new NotSupportedException(
                    "CreateIdentity: " + typeof(T).Name + " has no one; pass the value as oneValue");
            }
            return (T)one;
        }
    }
}
