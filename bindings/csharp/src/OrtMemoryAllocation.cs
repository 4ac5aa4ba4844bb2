using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Memory from an allocator. It is uninitialized, and freed when it is disposed of.</summary>
    public class OrtMemoryAllocation : SafeHandle
    {
        // Keeps the allocator until the memory is freed.
        private readonly OrtAllocator allocator;

        internal OrtMemoryAllocation(OrtAllocator allocator, uint size)
            : base(IntPtr.Zero, true)
        {
            this.allocator = allocator;
            Info = allocator.Info;
            Size = size;
            NativeStatus.ThrowOnError(OrtApi.AllocatorAlloc(allocator.Pointer, (UIntPtr)size, out IntPtr memory));
            SetHandle(memory);
            bool held = false;
            allocator.DangerousAddRef(ref held);
        }

        /// <summary>Whether the address is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>Location of the memory.</summary>
        public OrtMemoryInfo Info { get; }

        /// <summary>Size of the memory, in bytes.</summary>
        public uint Size { get; }

        /// <summary>The address.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Frees the memory.</summary>
        /// <returns>True if it was freed.</returns>
        protected override bool ReleaseHandle()
        {
            IntPtr status = OrtApi.AllocatorFree(allocator.DangerousGetHandle(), handle);
            allocator.DangerousRelease();
            if (status != IntPtr.Zero)
            {
                OrtApi.ReleaseStatus(status);
            }
            return status == IntPtr.Zero;
        }
    }
}
