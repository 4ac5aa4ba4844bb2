using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>An array of any number of dimensions.</summary>
    /// <remarks>Its elements are counted, copied and enumerated in the order in which they are stored in
    /// memory.</remarks>
    /// <typeparam name="T">Type of the elements.</typeparam>
    public abstract class Tensor<T> : IList<T>, IReadOnlyList<T>
    {
        internal readonly int[] dimensions;
        internal readonly int[] strides;

        /// <summary>Creates a tensor of rank 1.</summary>
        /// <param name="length">Number of elements.</param>
        /// <exception cref="ArgumentOutOfRangeException">When <paramref name="length"/> is
        /// negative.</exception>
        protected Tensor(int length)
            : this(new ReadOnlySpan<int>(new[] { length }), false)
        {
        }

        /// <summary>Creates a tensor of given dimensions.</summary>
        /// <param name="dimensions">The dimensions; none for a scalar.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in memory instead of the
        /// last.</param>
        /// <exception cref="ArgumentOutOfRangeException">When a dimension is negative, or there are too many
        /// elements.</exception>
        protected Tensor(ReadOnlySpan<int> dimensions, bool reverseStride)
        {
            Length = TensorShape.Length(dimensions, nameof(dimensions));
            this.dimensions = dimensions.ToArray();
            strides = TensorShape.Strides(dimensions, reverseStride);
            IsReversedStride = reverseStride;
        }

        /// <summary>Number of elements.</summary>
        public long Length { get; }

        /// <summary>Number of dimensions.</summary>
        public int Rank => dimensions.Length;

        /// <summary>Whether the first index varies fastest in memory instead of the last.</summary>
        public bool IsReversedStride { get; }

        /// <summary>The dimensions.</summary>
        public ReadOnlySpan<int> Dimensions => dimensions;

        /// <summary>The stride of each dimension, in elements.</summary>
        public ReadOnlySpan<int> Strides => strides;

        int ICollection<T>.Count => (int)Length;

        int IReadOnlyCollection<T>.Count => (int)Length;

        bool ICollection<T>.IsReadOnly => false;

        T IReadOnlyList<T>.this[int index] => GetValue(index);

        T IList<T>.this[int index]
        {
            get { return GetValue(index); }
            set { SetValue(index, value); }
        }

        /// <summary>An element.</summary>
        /// <param name="indices">Its index along each dimension, counted from 0.</param>
        /// <exception cref="ArgumentException">When there are not as many indices as dimensions.</exception>
        /// <exception cref="IndexOutOfRangeException">When an index is outside of its dimension.</exception>
        public virtual T this[params int[] indices]
        {
            get { return GetValue(Offset(Checked(indices))); }
            set { SetValue(Offset(Checked(indices)), value); }
        }

        /// <summary>An element.</summary>
        /// <param name="indices">Its index along each dimension, counted from 0.</param>
        /// <exception cref="ArgumentException">When there are not as many indices as dimensions.</exception>
        /// <exception cref="IndexOutOfRangeException">When an index is outside of its dimension.</exception>
        public virtual T this[ReadOnlySpan<int> indices]
        {
            get { return GetValue(Offset(indices)); }
            set { SetValue(Offset(indices), value); }
        }

        /// <summary>The element at an offset in memory.</summary>
        /// <param name="index">The place, counted from 0.</param>
        /// <returns>The element.</returns>
        public abstract T GetValue(int index);

        /// <summary>Sets the element at an offset in memory.</summary>
        /// <param name="index">The place, counted from 0.</param>
        /// <param name="value">The element.</param>
        public abstract void SetValue(int index, T value);

        /// <summary>A tensor of the same dimensions and elements, with its own memory.</summary>
        /// <returns>The copy.</returns>
        public abstract Tensor<T> Clone();

        /// <summary>A new tensor of zeros.</summary>
        /// <typeparam name="TResult">Type of its elements.</typeparam>
        /// <param name="dimensions">Its dimensions.</param>
        /// <returns>The tensor.</returns>
        public abstract Tensor<TResult> CloneEmpty<TResult>(ReadOnlySpan<int> dimensions);

        /// <summary>A tensor of other dimensions over the same memory.</summary>
        /// <param name="dimensions">The dimensions, with the same number of elements.</param>
        /// <returns>The tensor; what is written into the one is seen in the other.</returns>
        /// <exception cref="ArgumentException">When the number of elements is another.</exception>
        public abstract Tensor<T> Reshape(ReadOnlySpan<int> dimensions);

        /// <summary>A new tensor of zeros with the same dimensions.</summary>
        /// <returns>The tensor.</returns>
        public Tensor<T> CloneEmpty()
        {
            return CloneEmpty<T>(dimensions);
        }

        /// <summary>A new tensor of zeros.</summary>
        /// <param name="dimensions">Its dimensions.</param>
        /// <returns>The tensor.</returns>
        public Tensor<T> CloneEmpty(ReadOnlySpan<int> dimensions)
        {
            return CloneEmpty<T>(dimensions);
        }

        /// <summary>A new tensor of zeros with the same dimensions.</summary>
        /// <typeparam name="TResult">Type of its elements.</typeparam>
        /// <returns>The tensor.</returns>
        public Tensor<TResult> CloneEmpty<TResult>()
        {
            return CloneEmpty<TResult>(dimensions);
        }

        /// <summary>Sets every element.</summary>
        /// <param name="value">The value.</param>
        public virtual void Fill(T value)
        {
            for (int i = 0; i < Length; ++i)
            {
                SetValue(i, value);
            }
        }

        /// <summary>The elements as an array, in memory order.</summary>
        /// <returns>A new array.</returns>
        public virtual T[] ToArray()
        {
            var array = new T[Length];
            CopyTo(array, 0);
            return array;
        }

        /// <summary>A tensor of the same dimensions and elements that has a buffer.</summary>
        /// <returns>A new tensor.</returns>
        public virtual DenseTensor<T> ToDenseTensor()
        {
            return new DenseTensor<T>(ToArray(), dimensions, IsReversedStride);
        }

        /// <summary>Whether there is an element equal to a value.</summary>
        /// <param name="item">The value.</param>
        /// <returns>True when there is.</returns>
        public virtual bool Contains(T item)
        {
            return IndexOf(item) >= 0;
        }

        /// <summary>Offset in memory of the first element equal to a value.</summary>
        /// <param name="item">The value.</param>
        /// <returns>The place, or -1 when there is none.</returns>
        public virtual int IndexOf(T item)
        {
            EqualityComparer<T> comparer = EqualityComparer<T>.Default;
            for (int i = 0; i < Length; ++i)
            {
                if (comparer.Equals(GetValue(i), item))
                {
                    return i;
                }
            }
            return -1;
        }

        /// <summary>Copies the elements into an array, in memory order.</summary>
        /// <param name="array">The array.</param>
        /// <param name="arrayIndex">Where in it the first element goes.</param>
        /// <exception cref="ArgumentNullException">When <paramref name="array"/> is null.</exception>
        /// <exception cref="ArgumentException">When the array has too little room.</exception>
        public virtual void CopyTo(T[] array, int arrayIndex)
        {
            CheckRoom(array, arrayIndex);
            for (int i = 0; i < Length; ++i)
            {
                array[arrayIndex + i] = GetValue(i);
            }
        }

        /// <summary>Iterates over the elements in memory order.</summary>
        /// <returns>The enumerator.</returns>
        public IEnumerator<T> GetEnumerator()
        {
            for (int i = 0; i < Length; ++i)
            {
                yield return GetValue(i);
            }
        }

        IEnumerator IEnumerable.GetEnumerator()
        {
            return GetEnumerator();
        }

        void ICollection<T>.Add(T item)
        {
            throw new NotSupportedException("elements cannot be added to a tensor");
        }

        void ICollection<T>.Clear()
        {
            Fill(default(T));
        }

        bool ICollection<T>.Remove(T item)
        {
            throw new NotSupportedException("elements cannot be removed from a tensor");
        }

        void IList<T>.Insert(int index, T item)
        {
            throw new NotSupportedException("elements cannot be added to a tensor");
        }

        void IList<T>.RemoveAt(int index)
        {
            throw new NotSupportedException("elements cannot be removed from a tensor");
        }

        /// <summary>The elements as a string, with a pair of braces for each row.</summary>
        /// <param name="includeWhitespace">Whether rows have lines of their own.</param>
        /// <returns>The string, the same in every culture.</returns>
        public string GetArrayString(bool includeWhitespace = true)
        {
            var text = new StringBuilder();
            Append(text, 0, 0, includeWhitespace);
            return text.ToString();
        }

        /// <summary>Type and dimensions as a string.</summary>
        /// <returns>A string such as Tensor&lt;Single&gt;[2,3].</returns>
        public override string ToString()
        {
            return "Tensor<" + typeof(T).Name + ">" + TensorShape.Text(dimensions);
        }

        internal void CheckRoom(T[] array, int arrayIndex)
        {
            if (array == null)
            {
                throw new ArgumentNullException(nameof(array));
            }
            if (arrayIndex < 0 || array.Length - arrayIndex < Length)
            {
                throw new ArgumentException(
                    "the array has " + array.Length + " elements, expected " + Length + " from index " + arrayIndex +
                    " on",
                    nameof(array));
            }
        }

        internal void CheckSameLength(ReadOnlySpan<int> other)
        {
            if (TensorShape.Length(other, "dimensions") != Length)
            {
                throw new ArgumentException(
                    "Reshape: the shape " + TensorShape.Text(other) + " does not have the " + Length +
                    " elements of " + this,
                    "dimensions");
            }
        }

        private static int[] Checked(int[] indices)
        {
            return indices ?? throw new ArgumentNullException(nameof(indices));
        }

        private int Offset(ReadOnlySpan<int> indices)
        {
            return TensorShape.Offset(dimensions, strides, indices);
        }

        private void Append(StringBuilder text, int dimension, int offset, bool includeWhitespace)
        {
            if (dimension == Rank)
            {
                text.Append(Convert.ToString(GetValue(offset), CultureInfo.InvariantCulture));
                return;
            }
            bool rows = includeWhitespace && dimension < Rank - 1;
            text.Append('{');
            for (int i = 0; i < dimensions[dimension]; ++i)
            {
                if (i > 0)
                {
                    text.Append(',');
                }
                NewLine(text, rows, dimension + 1);
                Append(text, dimension + 1, offset + i * strides[dimension], includeWhitespace);
            }
            NewLine(text, rows, dimension);
            text.Append('}');
        }

        private static void NewLine(StringBuilder text, bool rows, int depth)
        {
            if (rows)
            {
                text.Append('\n').Append(' ', 4 * depth);
            }
        }
    }
}
