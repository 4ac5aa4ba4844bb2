using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Tensors from a file of a LoRA adapter, which runs take as inputs (RunOptions.AddActiveLoraAdapter).</summary>
    public class OrtLoraAdapter : SafeHandle
    {
        private OrtLoraAdapter(IntPtr handle)
            : base(IntPtr.Zero, true)
        {
            SetHandle(handle);
        }

        /// <summary>Reads an adapter from a file.</summary>
        /// <param name="adapterPath">The file.</param>
        /// <param name="ortAllocator">Not used: adapters stay in the memory of the CPU. May be null.</param>
        /// <returns>The adapter.</returns>
        /// <exception cref="OnnxRuntimeException">NoSuchFile when there is no such file; Fail when the file is not an
        /// adapter.</exception>
        public static OrtLoraAdapter Create(string adapterPath, OrtAllocator ortAllocator)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateLoraAdapter(
                NativeText.Path(adapterPath, nameof(adapterPath)), IntPtr.Zero, out IntPtr adapter));
            return new OrtLoraAdapter(adapter);
        }

        /// <summary>Reads an adapter from the contents of a file.</summary>
        /// <param name="bytes">The contents.</param>
        /// <param name="ortAllocator">Not used: adapters stay in the memory of the CPU. May be null.</param>
        /// <returns>The adapter.</returns>
        /// <exception cref="OnnxRuntimeException">Fail when the bytes are not an adapter.</exception>
        public static OrtLoraAdapter Create(byte[] bytes, OrtAllocator ortAllocator)
        {
            Arguments.NotNull(bytes, nameof(bytes));
            NativeStatus.ThrowOnError(OrtApi.CreateLoraAdapterFromArray(
                bytes, (UIntPtr)bytes.Length, IntPtr.Zero, out IntPtr adapter));
            return new OrtLoraAdapter(adapter);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The native handle of the adapter.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseLoraAdapter(handle);
            return true;
        }
    }
}
