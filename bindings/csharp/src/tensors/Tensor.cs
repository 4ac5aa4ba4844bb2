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
    public abstract class Tensor<T> : TensorBase, IList, IList<T>, IReadOnlyList<T>, IStructuralComparable,
        IStructuralEquatable
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
            : base(typeof(T))
        {
            Length = TensorShape.Length(dimensions, nameof(dimensions));
            this.dimensions = dimensions.ToArray();
            strides = TensorShape.Strides(dimensions, reverseStride);
            IsReversedStride = reverseStride;
        }

        /// <summary>Creates a tensor with the dimensions of an array; its elements are not read.</summary>
        /// <param name="fromArray">The array.</param>
        /// <param name="reverseStride">Whether the first index varies fastest in memory instead of the
        /// last.</param>
        /// <exception cref="ArgumentNullException">When <paramref name="fromArray"/> is null.</exception>
        protected Tensor(Array fromArray, bool reverseStride)
            : this((ReadOnlySpan<int>)TensorShape.Of(fromArray, nameof(fromArray)), reverseStride)
        {
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

        /// <summary>Always true: elements are neither added nor removed.</summary>
        public bool IsFixedSize => true;

        /// <summary>Always false: elements can be set.</summary>
        public bool IsReadOnly => false;

        int ICollection.Count => (int)Length;

        bool ICollection.IsSynchronized => false;

        object ICollection.SyncRoot => this;

        object IList.this[int index]
        {
            get { return GetValue(index); }
            set { SetValue(index, Element(value, nameof(value))); }
        }

        int ICollection<T>.Count => (int)Length;

        int IReadOnlyCollection<T>.Count => (int)Length;

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
        /// <returns>The tensor, which shares its elements with this one.</returns>
        /// <exception cref="ArgumentException">When the numbers of elements differ.</exception>
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
        /// <param name="arrayIndex">Index in the array for the first element.</param>
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

        /// <summary>Compares two tensors of equal shape element by element, in the order of memory.</summary>
        /// <param name="left">The first tensor.</param>
        /// <param name="right">The second tensor.</param>
        /// <returns>0 if all elements are equal; otherwise less or more than 0, like the first two elements that
        /// differ.</returns>
        /// <exception cref="ArgumentNullException">When a tensor is null.</exception>
        /// <exception cref="ArgumentException">When the shapes differ.</exception>
        public static int Compare(Tensor<T> left, Tensor<T> right)
        {
            Arguments.NotNull(left, nameof(left));
            return ((IStructuralComparable)left).CompareTo(right, Comparer<T>.Default);
        }

        /// <summary>Whether two tensors of equal shape have equal elements.</summary>
        /// <param name="left">The first tensor.</param>
        /// <param name="right">The second tensor.</param>
        /// <returns>True if they have.</returns>
        /// <exception cref="ArgumentNullException">When a tensor is null.</exception>
        /// <exception cref="ArgumentException">When the shapes differ.</exception>
        public static bool Equals(Tensor<T> left, Tensor<T> right)
        {
            Arguments.NotNull(left, nameof(left));
            return ((IStructuralEquatable)left).Equals(right, EqualityComparer<T>.Default);
        }

        /// <summary>The main diagonal over the first two dimensions.</summary>
        /// <returns>A new tensor of a rank that is lower by one.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        public Tensor<T> GetDiagonal()
        {
            return GetDiagonal(0);
        }

        /// <summary>A diagonal over the first two dimensions.</summary>
        /// <param name="offset">How far to the right of the main diagonal; negative below it.</param>
        /// <returns>A new tensor of a rank that is lower by one.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        /// <exception cref="ArgumentException">When there is no such diagonal.</exception>
        public Tensor<T> GetDiagonal(int offset)
        {
            return TensorTriangles.Diagonal(this, offset);
        }

        /// <summary>The elements on and below the main diagonal; zeros above.</summary>
        /// <returns>A new tensor.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        public Tensor<T> GetTriangle()
        {
            return GetTriangle(0, false);
        }

        /// <summary>The elements on and below a diagonal; zeros above.</summary>
        /// <param name="offset">How far to the right of the main diagonal; negative below it.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        public Tensor<T> GetTriangle(int offset)
        {
            return GetTriangle(offset, false);
        }

        /// <summary>The elements on a diagonal and on one side of it; zeros on the other.</summary>
        /// <param name="offset">How far to the right of the main diagonal; negative below it.</param>
        /// <param name="upper">Whether the elements above the diagonal are kept instead of those below.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        public Tensor<T> GetTriangle(int offset, bool upper)
        {
            return TensorTriangles.Triangle(this, offset, upper);
        }

        /// <summary>The elements on and above the main diagonal; zeros below.</summary>
        /// <returns>A new tensor.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        public Tensor<T> GetUpperTriangle()
        {
            return GetTriangle(0, true);
        }

        /// <summary>The elements on and above a diagonal; zeros below.</summary>
        /// <param name="offset">How far to the right of the main diagonal; negative below it.</param>
        /// <returns>A new tensor.</returns>
        /// <exception cref="InvalidOperationException">When the rank is less than 2.</exception>
        public Tensor<T> GetUpperTriangle(int offset)
        {
            return GetTriangle(offset, true);
        }

        void ICollection<T>.Add(T item)
        {
            throw SizeIsFixed("added to");
        }

        void ICollection<T>.Clear()
        {
            Fill(default(T));
        }

        bool ICollection<T>.Remove(T item)
        {
            throw SizeIsFixed("removed from");
        }

        void IList<T>.Insert(int index, T item)
        {
            throw SizeIsFixed("added to");
        }

        void IList<T>.RemoveAt(int index)
        {
            throw SizeIsFixed("removed from");
        }

        void ICollection.CopyTo(Array array, int index)
        {
            if (array is T[] own)
            {
                CopyTo(own, index);
                return;
            }
            Arguments.NotNull(array, nameof(array));
            if (array.Rank != 1 || index < 0 || array.Length - index < Length)
            {
                throw new ArgumentException(
                    "the array has " + array.Length + " elements and rank " + array.Rank + ", expected " + Length +
                    " from index " + index + " on and rank 1",
                    nameof(array));
            }
            for (int i = 0; i < Length; ++i)
            {
                array.SetValue(GetValue(i), index + i);
            }
        }

        int IList.Add(object value)
        {
            throw SizeIsFixed("added to");
        }

        void IList.Clear()
        {
            Fill(default(T));
        }

        bool IList.Contains(object value)
        {
            return IsElement(value) && Contains((T)value);
        }

        int IList.IndexOf(object value)
        {
            return IsElement(value) ? IndexOf((T)value) : -1;
        }

        void IList.Insert(int index, object value)
        {
            throw SizeIsFixed("added to");
        }

        void IList.Remove(object value)
        {
            throw SizeIsFixed("removed from");
        }

        void IList.RemoveAt(int index)
        {
            throw SizeIsFixed("removed from");
        }

        int IStructuralComparable.CompareTo(object other, IComparer comparer)
        {
            IList elements = OfSameShape(other);
            for (int i = 0; i < Length; ++i)
            {
                int order = comparer.Compare(GetValue(i), elements[i]);
                if (order != 0)
                {
                    return order;
                }
            }
            return 0;
        }

        bool IStructuralEquatable.Equals(object other, IEqualityComparer comparer)
        {
            IList elements = OfSameShape(other);
            for (int i = 0; i < Length; ++i)
            {
                if (!comparer.Equals(GetValue(i), elements[i]))
                {
                    return false;
                }
            }
            return true;
        }

        int IStructuralEquatable.GetHashCode(IEqualityComparer comparer)
        {
            int code = 17;
            for (int i = 0; i < Length; ++i)
            {
                code = unchecked(code * 31 + comparer.GetHashCode(GetValue(i)));
            }
            return code;
        }

        /// <summary>The elements as a string, with a pair of braces for each row.</summary>
        /// <param name="includeWhitespace">Whether each row begins a new line.</param>
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

        private static InvalidOperationException SizeIsFixed(string what)
        {
            return new InvalidOperationException("elements cannot be " + what + " a tensor: its size is fixed");
        }

        private static bool IsElement(object value)
        {
            return value is T || (value == null && default(T) == null);
        }

        private static T Element(object value, string name)
        {
            if (!IsElement(value))
            {
                throw new ArgumentException(
                    "expected a " + typeof(T).Name + ", found " + (value == null ? "null" : value.GetType().Name), name);
            }
            return (T)value;
        }

        /// <summary>Another tensor or array of this shape, as a list in the order of this tensor.</summary>
        private IList OfSameShape(object other)
        {
            if (other is Tensor<T> tensor)
            {
                if (!Dimensions.SequenceEqual(tensor.Dimensions))
                {
                    throw Different(TensorShape.Text(tensor.dimensions));
                }
                if (tensor.IsReversedStride == IsReversedStride)
                {
                    return tensor;
                }
                var ordered = (IList)CloneEmpty();
                for (int i = 0; i < Length; ++i)
                {
                    int at = TensorShape.OffsetOfPosition(dimensions, strides, i);
                    ordered[at] = tensor.GetValue(TensorShape.OffsetOfPosition(dimensions, tensor.strides, i));
                }
                return ordered;
            }
            if (other is Array array)
            {
                int[] found = TensorShape.Of(array, nameof(other));
                if (!Dimensions.SequenceEqual(found))
                {
                    throw Different(TensorShape.Text(found));
                }
                var ordered = new object[Length];
                int position = 0;
                foreach (object element in array)
                {
                    ordered[TensorShape.OffsetOfPosition(dimensions, strides, position)] = element;
                    ++position;
                }
                return ordered;
            }
            throw new ArgumentException(
                "a tensor is compared with a " + (other == null ? "null" : other.GetType().Name) +
                ", expected a " + this + " or an array of that shape",
                nameof(other));
        }

        private ArgumentException Different(string shape)
        {
            return new ArgumentException(
                "a tensor of shape " + shape + " is compared with a " + this + ", expected that shape", "other");
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
