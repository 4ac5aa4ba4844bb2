using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A place where memory lies. There is one, the memory of the CPU.</summary>
    public class OrtMemoryInfo : SafeHandle
    {
        private static readonly Lazy<OrtMemoryInfo> Cpu = new Lazy<OrtMemoryInfo>(CreateCpu);

        // The shared instance is never disposed of.
        private readonly bool shared;

        /// <summary>Creates a description of where memory is located.</summary>
        /// <param name="allocatorName">Name of the device; Cpu is the only one.</param>
        /// <param name="allocatorType">How memory is allocated.</param>
        /// <param name="deviceId">Index of the device.</param>
        /// <param name="memoryType">What the memory is for.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocatorName"/> is
        /// null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such device; the message
        /// lists those that exist.</exception>
        public OrtMemoryInfo(string allocatorName, OrtAllocatorType allocatorType, int deviceId, OrtMemType memoryType)
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateMemoryInfo(
                NativeText.Utf8(allocatorName, nameof(allocatorName)), allocatorType, deviceId, memoryType,
                out IntPtr info));
            SetHandle(info);
        }

        private OrtMemoryInfo(IntPtr info)
            : base(IntPtr.Zero, true)
        {
            shared = true;
            SetHandle(info);
        }

        /// <summary>CPU memory. Disposing of it does nothing.</summary>
        public static OrtMemoryInfo DefaultInstance => Cpu.Value;

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>Name of the device.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public string Name
        {
            get
            {
                NativeStatus.ThrowOnError(OrtApi.MemoryInfoGetName(Live, out IntPtr name));
                string text = NativeText.Read(name);
                GC.KeepAlive(this);
                return text;
            }
        }

        /// <summary>Index of the device.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public int Id
        {
            get
            {
                NativeStatus.ThrowOnError(OrtApi.MemoryInfoGetId(Live, out int id));
                return id;
            }
        }

        internal OrtMemoryInfo Live => Arguments.NotDisposed(this);

        /// <summary>What the memory is for.</summary>
        /// <returns>The purpose.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtMemType GetMemoryType()
        {
            NativeStatus.ThrowOnError(OrtApi.MemoryInfoGetMemType(Live, out OrtMemType type));
            return type;
        }

        /// <summary>How memory is allocated.</summary>
        /// <returns>The allocator type.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtAllocatorType GetAllocatorType()
        {
            NativeStatus.ThrowOnError(OrtApi.MemoryInfoGetType(Live, out OrtAllocatorType type));
            return type;
        }

        /// <summary>Whether two descriptions are equal.</summary>
        /// <param name="other">The second value.</param>
        /// <returns>True if they are.</returns>
        public bool Equals(OrtMemoryInfo other)
        {
            if (other == null)
            {
                return false;
            }
            NativeStatus.ThrowOnError(OrtApi.CompareMemoryInfo(Live, other.Live, out int different));
            return different == 0;
        }

        /// <summary>Whether another object is an equal description.</summary>
        /// <param name="obj">The object.</param>
        /// <returns>True if it is.</returns>
        public override bool Equals(object obj)
        {
            return Equals(obj as OrtMemoryInfo);
        }

        /// <summary>A hash code; equal descriptions have equal ones.</summary>
        /// <returns>The value.</returns>
        public override int GetHashCode()
        {
            return Name.GetHashCode() ^ Id ^ (int)GetMemoryType() ^ (int)GetAllocatorType();
        }

        /// <summary>Frees the object, unless it is the shared one.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by the finalizer.</param>
        protected override void Dispose(bool disposing)
        {
            if (!shared || !disposing)
            {
                base.Dispose(disposing);
            }
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseMemoryInfo(handle);
            return true;
        }

        private static OrtMemoryInfo CreateCpu()
        {
            NativeStatus.ThrowOnError(OrtApi.CreateCpuMemoryInfo(
                OrtAllocatorType.DeviceAllocator, OrtMemType.Default, out IntPtr info));
            return new OrtMemoryInfo(info);
        }
    }
}
