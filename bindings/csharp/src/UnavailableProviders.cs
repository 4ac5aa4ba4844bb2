using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Settings of the CUDA provider, which does not exist here, so that there are none.</summary>
    public class OrtCUDAProviderOptions : SafeHandle
    {
        /// <summary>Creates settings.</summary>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public OrtCUDAProviderOptions()
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateCUDAProviderOptions(out IntPtr options));
            SetHandle(options);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The settings as calls take them.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Sets values by name.</summary>
        /// <param name="providerOptions">The values.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public unsafe void UpdateOptions(Dictionary<string, string> providerOptions)
        {
            Arguments.NotNull(providerOptions, nameof(providerOptions));
            using (var keys = new NativeTexts(providerOptions.Keys, nameof(providerOptions)))
            using (var values = new NativeTexts(providerOptions.Values, nameof(providerOptions)))
            {
                NativeStatus.ThrowOnError(
                    OrtApi.UpdateCUDAProviderOptions(Live, keys.Pointers, values.Pointers, (UIntPtr)keys.Count));
            }
        }

        /// <summary>Reads all values.</summary>
        /// <returns>The values as text.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public string GetOptions()
        {
            NativeStatus.ThrowOnError(
                OrtApi.GetCUDAProviderOptionsAsString(Live, OrtAllocator.Default, out IntPtr text));
            return NativeText.Take(text);
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseCUDAProviderOptions(handle);
            return true;
        }
    }

    /// <summary>Settings of the ROCm provider, which does not exist here, so that there are none.</summary>
    public class OrtROCMProviderOptions : SafeHandle
    {
        /// <summary>Creates settings.</summary>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public OrtROCMProviderOptions()
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateROCMProviderOptions(out IntPtr options));
            SetHandle(options);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The settings as calls take them.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Sets values by name.</summary>
        /// <param name="providerOptions">The values.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public unsafe void UpdateOptions(Dictionary<string, string> providerOptions)
        {
            Arguments.NotNull(providerOptions, nameof(providerOptions));
            using (var keys = new NativeTexts(providerOptions.Keys, nameof(providerOptions)))
            using (var values = new NativeTexts(providerOptions.Values, nameof(providerOptions)))
            {
                NativeStatus.ThrowOnError(
                    OrtApi.UpdateROCMProviderOptions(Live, keys.Pointers, values.Pointers, (UIntPtr)keys.Count));
            }
        }

        /// <summary>Reads all values.</summary>
        /// <returns>The values as text.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public string GetOptions()
        {
            NativeStatus.ThrowOnError(
                OrtApi.GetROCMProviderOptionsAsString(Live, OrtAllocator.Default, out IntPtr text));
            return NativeText.Take(text);
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseROCMProviderOptions(handle);
            return true;
        }
    }

    /// <summary>Settings of the TensorRT provider, which does not exist here, so that there are none.</summary>
    public class OrtTensorRTProviderOptions : SafeHandle
    {
        /// <summary>Creates settings.</summary>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public OrtTensorRTProviderOptions()
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(OrtApi.CreateTensorRTProviderOptions(out IntPtr options));
            SetHandle(options);
        }

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => handle == IntPtr.Zero;

        /// <summary>The settings as calls take them.</summary>
        internal IntPtr Live => Arguments.NotDisposed(this).handle;

        /// <summary>Sets values by name.</summary>
        /// <param name="providerOptions">The values.</param>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public unsafe void UpdateOptions(Dictionary<string, string> providerOptions)
        {
            Arguments.NotNull(providerOptions, nameof(providerOptions));
            using (var keys = new NativeTexts(providerOptions.Keys, nameof(providerOptions)))
            using (var values = new NativeTexts(providerOptions.Values, nameof(providerOptions)))
            {
                NativeStatus.ThrowOnError(
                    OrtApi.UpdateTensorRTProviderOptions(Live, keys.Pointers, values.Pointers, (UIntPtr)keys.Count));
            }
        }

        /// <summary>Reads all values.</summary>
        /// <returns>The values as text.</returns>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public string GetOptions()
        {
            NativeStatus.ThrowOnError(
                OrtApi.GetTensorRTProviderOptionsAsString(Live, OrtAllocator.Default, out IntPtr text));
            return NativeText.Take(text);
        }

        /// <summary>Number of the device.</summary>
        /// <returns>0, for there are no settings that name another.</returns>
        public int GetDeviceId()
        {
            return 0;
        }

        /// <summary>Frees the object.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            OrtApi.ReleaseTensorRTProviderOptions(handle);
            return true;
        }
    }
}
