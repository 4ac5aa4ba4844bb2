using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Memory that calls took from the allocator of the CPU.</summary>
    internal static class NativeMemory
    {
        /// <summary>Gives memory back; null is nothing.</summary>
        internal static void Free(IntPtr memory)
        {
            if (memory != IntPtr.Zero)
            {
                NativeStatus.ThrowOnError(OrtApi.AllocatorFree(OrtAllocator.Default, memory));
            }
        }

        /// <summary>The bytes at an address, which is given back.</summary>
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
