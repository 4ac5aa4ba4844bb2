using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Allocates and frees memory. There is only the CPU allocator, which is never
    /// released.</summary>
    public class OrtAllocator : SafeHandle
    {
        private static readonly Lazy<OrtAllocator> Cpu = new Lazy<OrtAllocator>(CreateCpu);

        private OrtAllocator(IntPtr allocator)
            : base(IntPtr.Zero, false)
        {
            SetHandle(allocator);
        }

        /// <summary>The CPU allocator. Disposing of it does nothing.</summary>
        public static OrtAllocator DefaultInstance => Cpu.Value;

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>Location of its memory.</summary>
        public OrtMemoryInfo Info => OrtMemoryInfo.DefaultInstance;

        /// <summary>The CPU allocator as calls take it.</summary>
        internal static IntPtr Default => DefaultInstance.handle;

        /// <summary>The allocator as calls take it.</summary>
        internal IntPtr Pointer => handle;

        /// <summary>Does nothing, because the allocator is shared.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by the finalizer.</param>
        protected override void Dispose(bool disposing)
        {
        }

        /// <summary>Does nothing, because the allocator is never released.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
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
