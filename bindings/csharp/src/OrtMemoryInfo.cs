using System;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class OrtMemoryInfo
    {
        /// <summary>Name of memory of the CPU, in UTF-8 with a zero at the end.</summary>
        public static readonly byte[] allocatorCPU = NativeText.Utf8("Cpu", nameof(allocatorCPU));

        /// <summary>Name of memory of a CUDA device, in UTF-8 with a zero at the end.</summary>
        public static readonly byte[] allocatorCUDA = NativeText.Utf8("Cuda", nameof(allocatorCUDA));

        /// <summary>Name of pinned memory for CUDA, in UTF-8 with a zero at the end.</summary>
        public static readonly byte[] allocatorCUDA_PINNED =
            NativeText.Utf8("CudaPinned", nameof(allocatorCUDA_PINNED));

        /// <summary>Name of memory of a HIP device, in UTF-8 with a zero at the end.</summary>
        public static readonly byte[] allocatorHIP = NativeText.Utf8("Hip", nameof(allocatorHIP));

        /// <summary>Name of pinned memory for HIP, in UTF-8 with a zero at the end.</summary>
        public static readonly byte[] allocatorHIP_PINNED = NativeText.Utf8("HipPinned", nameof(allocatorHIP_PINNED));

        private static readonly Lazy<OrtMemoryInfo> Cpu = new Lazy<OrtMemoryInfo>(CreateCpu);

        // The shared instance is never disposed of.
        private bool shared;

        /// <summary>A description that belongs to another object and keeps that object alive.</summary>
        internal OrtMemoryInfo(IntPtr info, object owner)
            : base(IntPtr.Zero, false)
        {
            SetHandle(info);
            Owner = owner;
        }

        /// <summary>Creates a description of a device's memory.</summary>
        /// <param name="allocatorName">Name of the device in UTF-8 with a zero at the end, such as
        /// <see cref="allocatorCPU"/>.</param>
        /// <param name="allocatorType">How memory is allocated.</param>
        /// <param name="deviceId">Index of the device.</param>
        /// <param name="memoryType">The purpose of the memory.</param>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocatorName"/> is
        /// null.</exception>
        /// <exception cref="System.ArgumentException">When the name has no zero at the end.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when there is no such device.</exception>
        public OrtMemoryInfo(
            byte[] allocatorName, OrtAllocatorType allocatorType, int deviceId, OrtMemType memoryType)
            : this(NativeText.OfUtf8(allocatorName, nameof(allocatorName)), allocatorType, deviceId, memoryType)
        {
        }

        /// <summary>CPU memory. Disposing of it does nothing.</summary>
        public static OrtMemoryInfo DefaultInstance => Cpu.Value;

        private object Owner { get; }

        /// <summary>Whether two descriptions are equal.</summary>
        /// <param name="other">The other description.</param>
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

        /// <summary>A hash code; equal descriptions have equal hash codes.</summary>
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

        private static OrtMemoryInfo CreateCpu()
        {
            NativeStatus.ThrowOnError(OrtApi.CreateCpuMemoryInfo(
                OrtAllocatorType.DeviceAllocator, OrtMemType.Default, out IntPtr info));
            return new OrtMemoryInfo(info) { shared = true };
        }
    }
}
