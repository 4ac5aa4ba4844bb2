using System;
using System.Buffers;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A tensor, over memory of the caller or with its own.</summary>
    /// <remarks>
    /// A value over an array or a Memory keeps that pinned until it is disposed of, and copies nothing: what
    /// is written into the array is what the next step reads. Spans of a value with memory of its own point
    /// into that memory and end with the value: keep the value referenced, and do not dispose of it, while a
    /// span is in use (<see cref="GC.KeepAlive"/> or a using statement does it). Spans of a value over
    /// managed memory stay valid.
    /// </remarks>
    public sealed class OrtValue : IDisposable
    {
        private readonly OrtValueHandle handle;
        private readonly ManagedMemory managed;
        private object info;

        internal OrtValue(IntPtr value)
        {
            handle = new OrtValueHandle(value);
        }

        private OrtValue(OrtValueHandle handle, ManagedMemory managed)
        {
            this.handle = handle;
            this.managed = managed;
        }

        /// <summary>What kind the value is.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OnnxValueType OnnxType
        {
            get
            {
                NativeStatus.ThrowOnError(OrtApi.GetValueType(Live, out OnnxValueType type));
                return type;
            }
        }

        /// <summary>Whether the value is a dense tensor.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public bool IsTensor
        {
            get
            {
                NativeStatus.ThrowOnError(OrtApi.IsTensor(Live, out int flag));
                return flag != 0;
            }
        }

        /// <summary>Whether the value is a sparse tensor.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public bool IsSparseTensor
        {
            get
            {
                NativeStatus.ThrowOnError(OrtApi.IsSparseTensor(Live, out int flag));
                return flag != 0;
            }
        }

        /// <summary>The native value; throws when it was disposed of.</summary>
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

        /// <summary>Type and extents, asked for once; the array is not to be changed.</summary>
        internal OrtTensorTypeAndShapeInfo Info
        {
            get
            {
                if (info == null)
                {
                    NativeStatus.ThrowOnError(OrtApi.GetTensorTypeAndShape(Live, out IntPtr native));
                    info = OrtTensorTypeAndShapeInfo.Take(native);
                }
                return (OrtTensorTypeAndShapeInfo)info;
            }
        }

        /// <summary>Makes a tensor over memory, without a copy.</summary>
        /// <typeparam name="T">Type of the elements: a number type of C#, bool, Float16 or
        /// BFloat16.</typeparam>
        /// <param name="memoryInfo">Where the memory lies.</param>
        /// <param name="memory">The elements, row by row. It is pinned until the value is disposed
        /// of.</param>
        /// <param name="shape">The extents; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memoryInfo"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when no tensor has elements of the type, an
        /// extent is negative, or the memory is smaller than the tensor.</exception>
        public static OrtValue CreateTensorValueFromMemory<T>(OrtMemoryInfo memoryInfo, Memory<T> memory, long[] shape)
            where T : struct
        {
            TensorElementType type = TensorTypes.Of<T>(nameof(CreateTensorValueFromMemory));
            return CreateOver(memoryInfo, memory, type, shape, MemoryMarshal.AsBytes(memory.Span).Length);
        }

        /// <summary>Makes a tensor over an array, without a copy.</summary>
        /// <typeparam name="T">Type of the elements: a number type of C#, bool, Float16 or
        /// BFloat16.</typeparam>
        /// <param name="data">The elements, row by row. The array is pinned until the value is disposed
        /// of.</param>
        /// <param name="shape">The extents; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="data"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when no tensor has elements of the type, an
        /// extent is negative, or the array is smaller than the tensor.</exception>
        public static OrtValue CreateTensorValueFromMemory<T>(T[] data, long[] shape)
            where T : struct
        {
            var memory = new Memory<T>(Arguments.NotNull(data, nameof(data)));
            return CreateTensorValueFromMemory(OrtMemoryInfo.DefaultInstance, memory, shape);
        }

        /// <summary>Makes a tensor over memory at an address, without a copy.</summary>
        /// <param name="memInfo">Where the memory lies.</param>
        /// <param name="elementType">Type of the elements.</param>
        /// <param name="shape">The extents; none for a scalar.</param>
        /// <param name="dataBufferPtr">The elements, row by row. The memory has to outlive the value.</param>
        /// <param name="bufferLengthInBytes">Size of the memory, in bytes.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="memInfo"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when an extent is negative, or the memory
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

        /// <summary>Makes a tensor with memory of its own, not initialized.</summary>
        /// <param name="allocator">Gives the memory.</param>
        /// <param name="elementType">Type of the elements.</param>
        /// <param name="shape">The extents; none for a scalar.</param>
        /// <returns>The tensor.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocator"/> or <paramref
        /// name="shape"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when an extent is negative or the size too
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
        /// <returns>The elements, row by row. They end with the value, as the remarks of the class
        /// say.</returns>
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
        /// <returns>The elements, row by row. They end with the value, as the remarks of the class
        /// say.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the elements are of another
        /// type.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public Span<T> GetTensorMutableDataAsSpan<T>()
            where T : struct
        {
            return Data<T>(nameof(GetTensorMutableDataAsSpan));
        }

        /// <summary>The bytes of the elements, to read and write.</summary>
        /// <returns>The bytes. They end with the value, as the remarks of the class say.</returns>
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

        /// <summary>Element type and extents.</summary>
        /// <returns>Type and extents.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtTensorTypeAndShapeInfo GetTensorTypeAndShape()
        {
            NativeStatus.ThrowOnError(OrtApi.GetTensorTypeAndShape(Live, out IntPtr native));
            return OrtTensorTypeAndShapeInfo.Take(native);
        }

        /// <summary>Kind, element type and extents.</summary>
        /// <returns>What the value is.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtTypeInfo GetTypeInfo()
        {
            return new OrtTypeInfo(OnnxType, GetTensorTypeAndShape());
        }

        /// <summary>Size of the elements.</summary>
        /// <returns>The size in bytes.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public long GetTensorSizeInBytes()
        {
            NativeStatus.ThrowOnError(OrtApi.GetTensorSizeInBytes(Live, out UIntPtr size));
            return (long)size;
        }

        /// <summary>Where the elements lie.</summary>
        /// <returns>The memory of the CPU.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtMemoryInfo GetTensorMemoryInfo()
        {
            NativeStatus.ThrowOnError(OrtApi.GetTensorMemoryInfo(Live, out IntPtr unused));
            return OrtMemoryInfo.DefaultInstance;
        }

        /// <summary>Frees the value and lets go of the caller's memory. It may be called again, and then does
        /// nothing.</summary>
        public void Dispose()
        {
            handle.Dispose();
        }

        /// <summary>A tensor over memory of the caller whose elements may be declared as another type of the
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
            // Managed memory is looked at as such: its spans keep it alive, whatever becomes of the value.
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
