using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A place where memory lies. There is one, the memory of the CPU.</summary>
    public class OrtMemoryInfo : SafeHandle
    {
        private static readonly Lazy<OrtMemoryInfo> Cpu = new Lazy<OrtMemoryInfo>(CreateCpu);

        // The instance that all share is not disposed of by any of them.
        private readonly bool shared;

        /// <summary>Describes a place for memory.</summary>
        /// <param name="allocatorName">Name of the device, Cpu.</param>
        /// <param name="allocatorType">How memory is handed out.</param>
        /// <param name="deviceId">Number of the device.</param>
        /// <param name="memoryType">What the memory is for.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocatorName"/> is
        /// null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such device; the message
        /// names those that exist.</exception>
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

        /// <summary>The memory of the CPU. Disposing of it does nothing.</summary>
        public static OrtMemoryInfo DefaultInstance => Cpu.Value;

        /// <summary>Whether there is no object behind the handle.</summary>
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

        /// <summary>Number of the device.</summary>
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
        /// <returns>What it is for.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtMemType GetMemoryType()
        {
            NativeStatus.ThrowOnError(OrtApi.MemoryInfoGetMemType(Live, out OrtMemType type));
            return type;
        }

        /// <summary>How memory is handed out.</summary>
        /// <returns>How.</returns>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtAllocatorType GetAllocatorType()
        {
            NativeStatus.ThrowOnError(OrtApi.MemoryInfoGetType(Live, out OrtAllocatorType type));
            return type;
        }

        /// <summary>Whether two descriptions are the same.</summary>
        /// <param name="other">The other.</param>
        /// <returns>True when they are.</returns>
        public bool Equals(OrtMemoryInfo other)
        {
            if (other == null)
            {
                return false;
            }
            NativeStatus.ThrowOnError(OrtApi.CompareMemoryInfo(Live, other.Live, out int different));
            return different == 0;
        }

        /// <summary>Whether another object is the same description.</summary>
        /// <param name="obj">The object.</param>
        /// <returns>True when it is.</returns>
        public override bool Equals(object obj)
        {
            return Equals(obj as OrtMemoryInfo);
        }

        /// <summary>A number that equal descriptions have in common.</summary>
        /// <returns>The number.</returns>
        public override int GetHashCode()
        {
            return Name.GetHashCode() ^ Id ^ (int)GetMemoryType() ^ (int)GetAllocatorType();
        }

        /// <summary>Frees the object, unless it is the one that all share.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by the finalizer.</param>
        protected override void Dispose(bool disposing)
        {
            if (!shared || !disposing)
            {
                base.Dispose(disposing);
            }
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, for it cannot fail.</returns>
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
