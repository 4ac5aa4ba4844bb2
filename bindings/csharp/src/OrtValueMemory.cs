using System;
using System.Buffers;
using System.Runtime.InteropServices;
using System.Threading;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>
    /// The elements of a value as C# memory. Holding the memory keeps the value from being
    /// collected; a value that was disposed of returns no more spans.
    /// </summary>
    internal sealed unsafe class OrtValueMemory<T> : MemoryManager<T>
        where T : struct
    {
        private readonly OrtValue value;

        internal OrtValueMemory(OrtValue value)
        {
            this.value = value;
        }

        public override Span<T> GetSpan()
        {
            return value.GetTensorMutableDataAsSpan<T>();
        }

        public override MemoryHandle Pin(int elementIndex = 0)
        {
            int length = GetSpan().Length;
            if (elementIndex < 0 || elementIndex > length)
            {
                throw new ArgumentOutOfRangeException(
                    nameof(elementIndex), elementIndex, "expected a number from 0 to " + length);
            }
            OrtValueHandle handle = value.Live;
            bool added = false;
            handle.DangerousAddRef(ref added);
            NativeStatus.ThrowOnError(OrtApi.GetTensorMutableData(handle, out IntPtr data));
            int size = TensorTypes.Size(TensorTypes.Of<T>(nameof(Pin)));
            byte* start = (byte*)data + (long)elementIndex * size;
            return new MemoryHandle(start, default(GCHandle), new Hold(handle));
        }

        public override void Unpin()
        {
            // Each pin has a Hold, which ends with the pin.
        }

        protected override void Dispose(bool disposing)
        {
            // The value belongs to the creator of this object.
        }

        /// <summary>Keeps a value open until the pin ends.</summary>
        private sealed class Hold : IPinnable
        {
            private OrtValueHandle handle;

            internal Hold(OrtValueHandle handle)
            {
                this.handle = handle;
            }

            public MemoryHandle Pin(int elementIndex)
            {
                throw new NotSupportedException();
            }

            public void Unpin()
            {
                Interlocked.Exchange(ref handle, null)?.DangerousRelease();
            }
        }
    }
}
