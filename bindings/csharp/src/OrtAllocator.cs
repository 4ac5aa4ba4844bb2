using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Allocates and frees memory of the CPU.</summary>
    public class OrtAllocator : SafeHandle
    {
        private static readonly Lazy<OrtAllocator> Cpu = new Lazy<OrtAllocator>(CreateCpu);

        // The shared allocator of the process is never disposed of.
        private readonly bool shared;

        /// <summary>Creates the allocator of a session.</summary>
        /// <param name="session">The session.</param>
        /// <param name="memInfo">Location of the memory.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="System.ObjectDisposedException">When an object was disposed of.</exception>
        public OrtAllocator(InferenceSession session, OrtMemoryInfo memInfo)
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateAllocator(
                Arguments.NotNull(session, nameof(session)).Native, Arguments.NotNull(memInfo, nameof(memInfo)).Live,
                out IntPtr allocator));
            SetHandle(allocator);
        }

        private OrtAllocator(IntPtr allocator)
            : base(IntPtr.Zero, false)
        {
            shared = true;
            SetHandle(allocator);
        }

        /// <summary>The allocator of the process. Disposing of it does nothing.</summary>
        public static OrtAllocator DefaultInstance => Cpu.Value;

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>Location of its memory.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtMemoryInfo Info
        {
            get
            {
                NativeStatus.ThrowOnError(OrtApi.AllocatorGetInfo(Pointer, out IntPtr info));
                return new OrtMemoryInfo(info, this);
            }
        }

        /// <summary>The native handle of the allocator of the process.</summary>
        internal static IntPtr Default => DefaultInstance.handle;

        /// <summary>The native handle of the allocator.</summary>
        internal IntPtr Pointer => Arguments.NotDisposed(this).handle;

        /// <summary>Allocates memory, which the caller disposes of.</summary>
        /// <param name="size">Its size in bytes.</param>
        /// <returns>The memory, uninitialized.</returns>
        /// <exception cref="OnnxRuntimeException">Fail when there is not enough memory.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtMemoryAllocation Allocate(uint size)
        {
            return new OrtMemoryAllocation(this, size);
        }

        /// <summary>Frees the object, unless it is the shared one.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by the finalizer.</param>
        protected override void Dispose(bool disposing)
        {
            if (!shared)
            {
                base.Dispose(disposing);
            }
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseAllocator(handle);
            return true;
        }

        private static OrtAllocator CreateCpu()
        {
            NativeStatus.ThrowOnError(OrtApi.GetAllocatorWithDefaultOptions(out IntPtr allocator));
            return new OrtAllocator(allocator);
        }
    }
}
