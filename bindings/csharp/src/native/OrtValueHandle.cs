using System;
using System.Buffers;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>
    /// Owns a native value and the pin of its memory. The memory is released after the value,
    /// never before, and never while a call uses it.
    /// </summary>
    internal sealed class OrtValueHandle : SafeHandle
    {
        private MemoryHandle pin;

        internal OrtValueHandle(IntPtr value, MemoryHandle pin = default(MemoryHandle))
            : base(IntPtr.Zero, true)
        {
            this.pin = pin;
            SetHandle(value);
        }

        public override bool IsInvalid => handle == IntPtr.Zero;

        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseValue(handle);
            pin.Dispose();
            return true;
        }
    }
}
