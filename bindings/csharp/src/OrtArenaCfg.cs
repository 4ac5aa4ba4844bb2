using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Settings of an arena. Sessions plan their memory themselves, so the settings have no
    /// effect.</summary>
    public class OrtArenaCfg : SafeHandle
    {
        /// <summary>Creates settings.</summary>
        /// <param name="maxMemory">The maximum amount of memory in bytes; 0 for the default.</param>
        /// <param name="arenaExtendStrategy">How the arena grows: 0 to the next power of two, 1 by the requested size,
        /// -1 for the default.</param>
        /// <param name="initialChunkSizeBytes">Size of the first block; -1 for the default.</param>
        /// <param name="maxDeadBytesPerChunk">The maximum number of unused bytes in a block; -1 for the
        /// default.</param>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when a setting is out of range.</exception>
        public OrtArenaCfg(uint maxMemory, int arenaExtendStrategy, int initialChunkSizeBytes, int maxDeadBytesPerChunk)
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateArenaCfg(
                (UIntPtr)maxMemory, arenaExtendStrategy, initialChunkSizeBytes, maxDeadBytesPerChunk,
                out IntPtr settings));
            SetHandle(settings);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The native handle of the settings.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseArenaCfg(handle);
            return true;
        }
    }
}
