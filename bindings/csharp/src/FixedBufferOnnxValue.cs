using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A value over pinned memory, for inputs and outputs that are reused in every
    /// step.</summary>
    /// <remarks>
    /// Nothing is copied. As an input, it passes the current contents of the memory to a step; as an output, its memory
    /// receives the result. The memory is pinned until the value is disposed of.
    /// </remarks>
    public class FixedBufferOnnxValue : IDisposable, IRunValue
    {
        private readonly OrtValue value;

        private FixedBufferOnnxValue(OrtValue value)
        {
            this.value = value;
        }

        OrtValueHandle IRunValue.Live => Live;

        /// <summary>The native value; throws if it was disposed of.</summary>
        internal OrtValueHandle Live
        {
            get
            {
                if (IsDisposed)
                {
                    throw new ObjectDisposedException(nameof(FixedBufferOnnxValue));
                }
                return value.Live;
            }
        }

        private bool IsDisposed { get; set; }

        /// <summary>Creates a value over the buffer of a tensor.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="value">A row-major DenseTensor.</param>
        /// <returns>The value.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="value"/> is null.</exception>
        /// <exception cref="System.ArgumentException">When the tensor does not own its buffer, or its first index
        /// varies fastest in memory.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when no tensor has elements of the
        /// type.</exception>
        public static FixedBufferOnnxValue CreateFromTensor<T>(Tensor<T> value)
        {
            Arguments.NotNull(value, nameof(value));
            TensorTypes.Of<T>(nameof(CreateFromTensor));
            if (!(value is DenseTensor<T> dense))
            {
                throw new ArgumentException(
                    "CreateFromTensor: a " + value.GetType().Name + " has no buffer, expected a DenseTensor",
                    nameof(value));
            }
            return new FixedBufferOnnxValue(((IBufferedTensor)dense).CreateOrtValue());
        }

        /// <summary>Creates a value over memory.</summary>
        /// <typeparam name="T">Type of the memory's elements: that of the tensor's, or byte.</typeparam>
        /// <param name="memoryInfo">Location of the memory.</param>
        /// <param name="memory">The memory.</param>
        /// <param name="elementType">Type of the tensor's elements.</param>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <param name="bytesSize">How much of the memory the tensor takes, in bytes.</param>
        /// <returns>The value.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memoryInfo"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="System.ArgumentException">When <paramref name="memory"/> is of another type, or
        /// shorter than <paramref name="bytesSize"/>.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when a dimension is negative, or <paramref
        /// name="bytesSize"/>
        /// is less than the tensor takes; NotImplemented when tensors of the type are not
        /// supported.</exception>
        public static FixedBufferOnnxValue CreateFromMemory<T>(
            OrtMemoryInfo memoryInfo, Memory<T> memory, TensorElementType elementType, long[] shape, long bytesSize)
            where T : struct
        {
            TensorElementType given = TensorTypes.Find(typeof(T));
            if (given != elementType && given != TensorElementType.UInt8)
            {
                throw new ArgumentException(
                    "CreateFromMemory: the memory has elements of type " + typeof(T).Name + ", expected the type for " +
                    elementType + ", or byte",
                    nameof(memory));
            }
            int size = MemoryMarshal.AsBytes(memory.Span).Length;
            if (bytesSize < 0 || bytesSize > size)
            {
                throw new ArgumentException(
                    "CreateFromMemory: bytesSize is " + bytesSize + ", expected at most the size of the memory, " +
                    size + " bytes",
                    nameof(bytesSize));
            }
            return new FixedBufferOnnxValue(OrtValue.CreateOver(memoryInfo, memory, elementType, shape, bytesSize));
        }

        /// <summary>The values of buffers.</summary>
        internal static IReadOnlyCollection<OrtValue> ValuesOf(
            IReadOnlyCollection<FixedBufferOnnxValue> buffers, string name)
        {
            var values = new List<OrtValue>(Arguments.NotNull(buffers, name).Count);
            foreach (FixedBufferOnnxValue buffer in buffers)
            {
                if (buffer == null)
                {
                    throw new ArgumentNullException(name + "[" + values.Count + "]");
                }
                values.Add(buffer.Live.IsClosed ? null : buffer.value);
            }
            return values;
        }

        /// <summary>Frees the value and unpins the memory. Calling it again has no
        /// effect.</summary>
        public void Dispose()
        {
            Dispose(true);
            GC.SuppressFinalize(this);
        }

        /// <summary>Frees the value that the object owns.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by a finalizer.</param>
        protected virtual void Dispose(bool disposing)
        {
            if (disposing)
            {
                IsDisposed = true;
                value.Dispose();
            }
        }
    }
}
