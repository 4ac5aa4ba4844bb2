using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Hands out memory and takes it back. There is one, the allocator of the CPU, and it is never
    /// released.</summary>
    public class OrtAllocator : SafeHandle
    {
        private static readonly Lazy<OrtAllocator> Cpu = new Lazy<OrtAllocator>(CreateCpu);

        private OrtAllocator(IntPtr allocator)
            : base(IntPtr.Zero, false)
        {
            SetHandle(allocator);
        }

        /// <summary>The allocator of the CPU. Disposing of it does nothing.</summary>
        public static OrtAllocator DefaultInstance => Cpu.Value;

        /// <summary>Whether there is no object behind the handle.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>Where its memory lies.</summary>
        public OrtMemoryInfo Info => OrtMemoryInfo.DefaultInstance;

        /// <summary>The allocator of the CPU as calls take it.</summary>
        internal static IntPtr Default => DefaultInstance.handle;

        /// <summary>The allocator as calls take it.</summary>
        internal IntPtr Pointer => handle;

        /// <summary>Does nothing, for all share the allocator.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by the finalizer.</param>
        protected override void Dispose(bool disposing)
        {
        }

        /// <summary>Does nothing, for the allocator is never released.</summary>
        /// <returns>Always true, for it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            return true;
        }

        private static OrtAllocator CreateCpu()
        {
            NativeStatus.ThrowOnError(OrtApi.GetAllocatorWithDefaultOptions(out IntPtr allocator));
            return new OrtAllocator(allocator);
        }
    }
}
