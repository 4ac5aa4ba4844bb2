using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Packed weights that sessions share. The container stays empty, because sessions do not share packed
    /// weights.</summary>
    public class PrePackedWeightsContainer : SafeHandle
    {
        /// <summary>Creates an empty container.</summary>
        public PrePackedWeightsContainer()
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreatePrepackedWeightsContainer(out IntPtr container));
            SetHandle(container);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The native handle of the container.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleasePrepackedWeightsContainer(handle);
            return true;
        }
    }
}
