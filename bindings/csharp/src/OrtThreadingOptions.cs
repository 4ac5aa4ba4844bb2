using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Threads that the sessions of an environment share.</summary>
    public class OrtThreadingOptions : SafeHandle
    {
        /// <summary>Creates options with default values.</summary>
        public OrtThreadingOptions()
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateThreadingOptions(out IntPtr options));
            SetHandle(options);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>Number of threads that a step uses; 0 for one per processor.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public int GlobalIntraOpNumThreads
        {
            set { NativeStatus.ThrowOnError(OrtApi.SetGlobalIntraOpNumThreads(Live, value)); }
        }

        /// <summary>Number of threads that run nodes at the same time.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public int GlobalInterOpNumThreads
        {
            set { NativeStatus.ThrowOnError(OrtApi.SetGlobalInterOpNumThreads(Live, value)); }
        }

        /// <summary>Whether idle threads wait actively for a while.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public bool GlobalSpinControl
        {
            set { NativeStatus.ThrowOnError(OrtApi.SetGlobalSpinControl(Live, Arguments.Byte(value))); }
        }

        /// <summary>The native handle of the options.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Lets the threads treat denormal numbers as zero.</summary>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void SetGlobalDenormalAsZero()
        {
            NativeStatus.ThrowOnError(OrtApi.SetGlobalDenormalAsZero(Live));
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseThreadingOptions(handle);
            return true;
        }
    }
}
