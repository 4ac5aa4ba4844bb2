using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>Tensors from arrays. The elements are copied.</summary>
    public static class ArrayTensorExtensions
    {
        /// <summary>A tensor of rank 1 with the elements of an array.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="array">The array.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="array"/> is null.</exception>
        public static DenseTensor<T> ToTensor<T>(this T[] array)
        {
            Arguments.NotNull(array, nameof(array));
            return new DenseTensor<T>((T[])array.Clone(), new[] { array.Length });
        }

        /// <summary>A tensor with the dimensions and elements of an array.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="array">The array.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in the tensor's memory instead of
        /// the last.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="array"/> is null.</exception>
        public static DenseTensor<T> ToTensor<T>(this T[,] array, bool reverseStride = false)
        {
            return Copy<T>(array, reverseStride);
        }

        /// <summary>A tensor with the dimensions and elements of an array.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="array">The array.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in the tensor's memory instead of
        /// the last.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="array"/> is null.</exception>
        public static DenseTensor<T> ToTensor<T>(this T[,,] array, bool reverseStride = false)
        {
            return Copy<T>(array, reverseStride);
        }

        /// <summary>A tensor with the dimensions and elements of an array.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="array">The array.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in the tensor's memory instead of
        /// the last.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="array"/> is null.</exception>
        public static DenseTensor<T> ToTensor<T>(this T[,,,] array, bool reverseStride = false)
        {
            return Copy<T>(array, reverseStride);
        }

        /// <summary>A tensor with the dimensions and elements of an array of any rank.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="array">The array, with elements of type T.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in the tensor's memory instead of
        /// the last.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="ArgumentNullException">When <paramref name="array"/> is null.</exception>
        /// <exception cref="ArgumentException">When its elements are of another type.</exception>
        public static DenseTensor<T> ToTensor<T>(this Array array, bool reverseStride = false)
        {
            return Copy<T>(array, reverseStride);
        }

        private static DenseTensor<T> Copy<T>(Array array, bool reverseStride)
        {
            Arguments.NotNull(array, nameof(array));
            if (array.GetType().GetElementType() != typeof(T))
            {
                throw new ArgumentException(
                    "ToTensor: the array has elements of type " + array.GetType().GetElementType().Name +
                    ", expected " + typeof(T).Name,
                    nameof(array));
            }
            int[] dimensions = TensorShape.Of(array, nameof(array));
            var tensor = new DenseTensor<T>(dimensions, reverseStride);
            Span<T> elements = tensor.Buffer.Span;
            int position = 0;
            // An array is enumerated with its last index varying fastest.
            foreach (T element in array)
            {
                elements[TensorShape.OffsetOfPosition(dimensions, tensor.strides, position)] = element;
                ++position;
            }
            return tensor;
        }
    }
}
