using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Memory that calls allocated with the CPU allocator.</summary>
    internal static class NativeMemory
    {
        /// <summary>Frees memory; null is ignored.</summary>
        internal static void Free(IntPtr memory)
        {
            if (memory != IntPtr.Zero)
            {
                NativeStatus.ThrowOnError(OrtApi.AllocatorFree(OrtAllocator.Default, memory));
            }
        }

        /// <summary>The bytes at an address, which is freed.</summary>
        internal static byte[] Take(IntPtr memory, UIntPtr size)
        {
            try
            {
                var bytes = new byte[checked((int)(ulong)size)];
                if (bytes.Length > 0)
                {
                    Marshal.Copy(memory, bytes, 0, bytes.Length);
                }
                return bytes;
            }
            finally
            {
                Free(memory);
            }
        }
    }
}
