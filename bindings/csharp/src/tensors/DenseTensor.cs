using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>A tensor whose elements are stored in one block of memory.</summary>
    /// <typeparam name="T">Type of the elements.</typeparam>
    public class DenseTensor<T> : Tensor<T>, IBufferedTensor
    {
        /// <summary>Creates a tensor of zeros of rank 1.</summary>
        /// <param name="length">Number of elements.</param>
        /// <exception cref="ArgumentOutOfRangeException">When <paramref name="length"/> is
        /// negative.</exception>
        public DenseTensor(int length)
            : base(length)
        {
            Buffer = new T[length];
        }

        /// <summary>Creates a tensor of zeros.</summary>
        /// <param name="dimensions">The dimensions; none for a scalar.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in memory instead of the
        /// last.</param>
        /// <exception cref="ArgumentOutOfRangeException">When a dimension is negative, or there are too many
        /// elements.</exception>
        public DenseTensor(ReadOnlySpan<int> dimensions, bool reverseStride = false)
            : base(dimensions, reverseStride)
        {
            Buffer = new T[Length];
        }

        /// <summary>Creates a tensor over memory, without a copy.</summary>
        /// <param name="memory">The elements.</param>
        /// <param name="dimensions">The dimensions; none for a scalar.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in memory instead of the
        /// last.</param>
        /// <exception cref="ArgumentOutOfRangeException">When a dimension is negative, or there are too many
        /// elements.</exception>
        /// <exception cref="ArgumentException">When the memory does not have as many elements as the
        /// tensor.</exception>
        public DenseTensor(Memory<T> memory, ReadOnlySpan<int> dimensions, bool reverseStride = false)
            : base(dimensions, reverseStride)
        {
            if (memory.Length != Length)
            {
                throw new ArgumentException(
                    "the memory has " + memory.Length + " elements, expected the " + Length + " of the shape " +
                    TensorShape.Text(dimensions),
                    nameof(memory));
            }
            Buffer = memory;
        }

        /// <summary>The memory that contains the elements.</summary>
        public Memory<T> Buffer { get; }

        /// <inheritdoc/>
        public override T GetValue(int index)
        {
            return Buffer.Span[index];
        }

        /// <inheritdoc/>
        public override void SetValue(int index, T value)
        {
            Span<T> elements = Buffer.Span;
            elements[index] = value;
        }

        /// <inheritdoc/>
        public override void Fill(T value)
        {
            Buffer.Span.Fill(value);
        }

        /// <inheritdoc/>
        public override T[] ToArray()
        {
            return Buffer.ToArray();
        }

        /// <inheritdoc/>
        public override void CopyTo(T[] array, int arrayIndex)
        {
            CheckRoom(array, arrayIndex);
            Buffer.Span.CopyTo(new Span<T>(array, arrayIndex, (int)Length));
        }

        /// <inheritdoc/>
        public override Tensor<T> Clone()
        {
            return new DenseTensor<T>(Buffer.ToArray(), dimensions, IsReversedStride);
        }

        /// <inheritdoc/>
        public override Tensor<TResult> CloneEmpty<TResult>(ReadOnlySpan<int> dimensions)
        {
            return new DenseTensor<TResult>(dimensions, IsReversedStride);
        }

        /// <inheritdoc/>
        public override Tensor<T> Reshape(ReadOnlySpan<int> dimensions)
        {
            CheckSameLength(dimensions);
            return new DenseTensor<T>(Buffer, dimensions, IsReversedStride);
        }

        /// <summary>A value over the buffer.</summary>
        OrtValue IBufferedTensor.CreateOrtValue()
        {
            if (this is Tensor<string> texts)
            {
                return OrtValue.CreateFromStringTensor(texts);
            }
            if (IsReversedStride && Rank > 1)
            {
                throw new ArgumentException(
                    "the tensor is column-major (IsReversedStride), expected a row-major one");
            }
            return TensorTypes.Over(Buffer, Array.ConvertAll(dimensions, dimension => (long)dimension));
        }
    }
}
