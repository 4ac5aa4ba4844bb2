using System;
using System.Buffers;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class OrtValue : IDisposable, IRunValue
    {
        /// <summary>Passed to calls in place of a value that is null.</summary>
        internal static readonly OrtValue None = new OrtValue(IntPtr.Zero);

        private readonly OrtValueHandle handle;
        private readonly ManagedMemory managed;
        private object info;

        /// <summary>The values that a sequence or map was made from, which are disposed of with it.</summary>
        private IReadOnlyList<OrtValue> parts;

        internal OrtValue(IntPtr value)
        {
            handle = new OrtValueHandle(value);
        }

        private OrtValue(OrtValueHandle handle, ManagedMemory managed)
        {
            this.handle = handle;
            this.managed = managed;
        }

        OrtValueHandle IRunValue.Live => Live;

        /// <summary>The native value; throws if it was disposed of.</summary>
        internal OrtValueHandle Live
        {
            get
            {
                if (handle.IsClosed)
                {
                    throw new ObjectDisposedException(nameof(OrtValue));
                }
                return handle;
            }
        }

        /// <summary>Type and dimensions, queried once; the array must not be changed.</summary>
        internal OrtTensorTypeAndShapeInfo Info
        {
            get
            {
                if (info == null)
                {
                    info = GetTensorTypeAndShape();
                }
                return (OrtTensorTypeAndShapeInfo)info;
            }
        }

        /// <summary>Creates a tensor over memory, without a copy.</summary>
        /// <typeparam name="T">Type of the elements: a numeric type of C#, bool, Float16 or
        /// BFloat16.</typeparam>
        /// <param name="memoryInfo">Location of the memory.</param>
        /// <param name="memory">The elements in row-major order. It is pinned until the value is disposed
        /// of.</param>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memoryInfo"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when no tensor has elements of the type, a
        /// dimension is negative, or the memory is smaller than the tensor.</exception>
        public static OrtValue CreateTensorValueFromMemory<T>(OrtMemoryInfo memoryInfo, Memory<T> memory, long[] shape)
            where T : struct
        {
            TensorElementType type = TensorTypes.Of<T>(nameof(CreateTensorValueFromMemory));
            return CreateOver(memoryInfo, memory, type, shape, MemoryMarshal.AsBytes(memory.Span).Length);
        }

        /// <summary>Creates a tensor over an array, without a copy.</summary>
        /// <typeparam name="T">Type of the elements: a numeric type of C#, bool, Float16 or
        /// BFloat16.</typeparam>
        /// <param name="data">The elements in row-major order. The array is pinned until the value is disposed
        /// of.</param>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="data"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when no tensor has elements of the type, a
        /// dimension is negative, or the array is smaller than the tensor.</exception>
        public static OrtValue CreateTensorValueFromMemory<T>(T[] data, long[] shape)
            where T : struct
        {
            var memory = new Memory<T>(Arguments.NotNull(data, nameof(data)));
            return CreateTensorValueFromMemory(OrtMemoryInfo.DefaultInstance, memory, shape);
        }

        /// <summary>Creates a tensor over memory at an address, without a copy.</summary>
        /// <param name="memInfo">Location of the memory.</param>
        /// <param name="elementType">Type of the elements.</param>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <param name="dataBufferPtr">The elements in row-major order. The memory has to outlive the value.</param>
        /// <param name="bufferLengthInBytes">Size of the memory, in bytes.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memInfo"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when a dimension is negative, or the memory
        /// is smaller than the tensor; NotImplemented when tensors of the type are not supported.</exception>
        public static OrtValue CreateTensorValueWithData(
            OrtMemoryInfo memInfo, TensorElementType elementType, long[] shape, IntPtr dataBufferPtr,
            long bufferLengthInBytes)
        {
            Arguments.NotNull(shape, nameof(shape));
            NativeStatus.ThrowOnError(OrtApi.CreateTensorWithDataAsOrtValue(
                Arguments.NotNull(memInfo, nameof(memInfo)).Live, dataBufferPtr,
                Arguments.Size(bufferLengthInBytes, nameof(bufferLengthInBytes)), shape, (UIntPtr)shape.Length,
                elementType, out IntPtr value));
            return new OrtValue(value);
        }

        /// <summary>Creates a tensor that owns its memory; the elements are uninitialized.</summary>
        /// <param name="allocator">Allocates the memory.</param>
        /// <param name="elementType">Type of the elements.</param>
        /// <param name="shape">The dimensions; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocator"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when a dimension is negative or the size too
        /// large; NotImplemented when tensors of the type are not supported.</exception>
        public static OrtValue CreateAllocatedTensorValue(
            OrtAllocator allocator, TensorElementType elementType, long[] shape)
        {
            Arguments.NotNull(shape, nameof(shape));
            NativeStatus.ThrowOnError(OrtApi.CreateTensorAsOrtValue(
                Arguments.NotNull(allocator, nameof(allocator)).Pointer, shape, (UIntPtr)shape.Length, elementType,
                out IntPtr value));
            return new OrtValue(value);
        }

        /// <summary>The elements, to read.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <returns>The elements in row-major order. They are valid as long as the value; see the remarks of the
        /// class.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the elements are of another
        /// type.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public ReadOnlySpan<T> GetTensorDataAsSpan<T>()
            where T : struct
        {
            return Data<T>(nameof(GetTensorDataAsSpan));
        }

        /// <summary>The elements, to read and write.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <returns>The elements in row-major order. They are valid as long as the value; see the remarks of the
        /// class.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the elements are of another
        /// type.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public Span<T> GetTensorMutableDataAsSpan<T>()
            where T : struct
        {
            return Data<T>(nameof(GetTensorMutableDataAsSpan));
        }

        /// <summary>The bytes of the elements, to read and write.</summary>
        /// <returns>The bytes. They are valid as long as the value; see the remarks of the class.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public unsafe Span<byte> GetTensorMutableRawData()
        {
            OrtTensorTypeAndShapeInfo tensor = Info;
            OrtValueHandle live = Live;
            int size = Fitting(tensor.ElementCount * TensorTypes.Size(tensor.ElementDataType), "bytes");
            if (managed != null)
            {
                return managed.Bytes.Slice(0, size);
            }
            NativeStatus.ThrowOnError(OrtApi.GetTensorMutableData(live, out IntPtr data));
            return new Span<byte>((void*)data, size);
        }

        /// <summary>The value itself.</summary>
        public OrtValue Value => this;

        /// <summary>Kind, element type and dimensions.</summary>
        /// <returns>The type information.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtTypeInfo GetTypeInfo()
        {
            NativeStatus.ThrowOnError(OrtApi.GetTypeInfo(Live, out IntPtr native));
            return OrtTypeInfo.Take(native);
        }

        /// <summary>Location of the elements.</summary>
        /// <returns>CPU memory.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtMemoryInfo GetTensorMemoryInfo()
        {
            NativeStatus.ThrowOnError(OrtApi.GetTensorMemoryInfo(Live, out IntPtr unused));
            return OrtMemoryInfo.DefaultInstance;
        }

        /// <summary>Frees the value and unpins the caller's memory. Calling it again has no
        /// effect.</summary>
        public void Dispose()
        {
            Dispose(true);
            GC.SuppressFinalize(this);
        }

        /// <summary>Frees the memory that the value owns.</summary>
        /// <param name="disposing">True when called by Dispose(); the handle has its own finalizer.</param>
        protected virtual void Dispose(bool disposing)
        {
            if (!disposing)
            {
                return;
            }
            handle.Dispose();
            if (parts != null)
            {
                foreach (OrtValue part in parts)
                {
                    part.Dispose();
                }
                parts = null;
            }
        }

        /// <summary>A tensor over the caller's memory whose elements may be declared as another type of the
        /// same size.</summary>
        internal static unsafe OrtValue CreateOver<T>(
            OrtMemoryInfo memoryInfo, Memory<T> memory, TensorElementType type, long[] shape, long size)
            where T : struct
        {
            Arguments.NotNull(memoryInfo, nameof(memoryInfo));
            Arguments.NotNull(shape, nameof(shape));
            MemoryHandle pin = memory.Pin();
            try
            {
                NativeStatus.ThrowOnError(OrtApi.CreateTensorWithDataAsOrtValue(
                    memoryInfo.Live, (IntPtr)pin.Pointer, (UIntPtr)size, shape, (UIntPtr)shape.Length, type,
                    out IntPtr value));
                return new OrtValue(new OrtValueHandle(value, pin), new ManagedMemory<T>(memory));
            }
            catch
            {
                pin.Dispose();
                throw;
            }
        }

        private unsafe Span<T> Data<T>(string method)
            where T : struct
        {
            OrtValueHandle live = Live;
            OrtTensorTypeAndShapeInfo tensor = Info;
            TensorTypes.Require<T>(tensor.ElementDataType, method);
            int count = Fitting(tensor.ElementCount, "elements");
            // Managed memory is accessed as such: its spans keep it alive even if the value is freed.
            if (managed is ManagedMemory<T> own)
            {
                return own.Memory.Span.Slice(0, count);
            }
            NativeStatus.ThrowOnError(OrtApi.GetTensorMutableData(live, out IntPtr data));
            return new Span<T>((void*)data, count);
        }

        private int Fitting(long count, string what)
        {
            if (count > int.MaxValue)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.Fail,
                    "the tensor " + Info + " has " + count + " " + what + ", expected at most " + int.MaxValue +
                    ", which is what a span can hold");
            }
            return (int)count;
        }

        private abstract class ManagedMemory
        {
            internal abstract Span<byte> Bytes { get; }
        }

        private sealed class ManagedMemory<T> : ManagedMemory
            where T : struct
        {
            internal ManagedMemory(Memory<T> memory)
            {
                Memory = memory;
            }

            internal Memory<T> Memory { get; }

            internal override Span<byte> Bytes => MemoryMarshal.AsBytes(Memory.Span);
        }
    }
}
