using System;

namespace Microsoft.ML.OnnxRuntime
{
    public partial class OrtMemoryInfo
    {
        private static readonly Lazy<OrtMemoryInfo> Cpu = new Lazy<OrtMemoryInfo>(CreateCpu);

        // The shared instance is never disposed of.
        private bool shared;

        /// <summary>CPU memory. Disposing of it does nothing.</summary>
        public static OrtMemoryInfo DefaultInstance => Cpu.Value;

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

        private static OrtMemoryInfo CreateCpu()
        {
            NativeStatus.ThrowOnError(OrtApi.CreateCpuMemoryInfo(
                OrtAllocatorType.DeviceAllocator, OrtMemType.Default, out IntPtr info));
            return new OrtMemoryInfo(info) { shared = true };
        }
    }
}
