using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Settings of a provider that does not exist here: creating them fails, so that there are none.</summary>
    public abstract class UnavailableProviderOptions : SafeHandle
    {
        /// <summary>Throws the error with which the library rejects their creation.</summary>
        private protected UnavailableProviderOptions(CreateCall create)
            : base(IntPtr.Zero, true)
        {
            NativeStatus.ThrowOnError(create(out IntPtr unused));
        }

        /// <summary>Would create settings.</summary>
        internal delegate IntPtr CreateCall(out IntPtr options);

        /// <summary>Whether the handle is null.</summary>
        public override bool IsInvalid => true;

        /// <summary>Sets values by name.</summary>
        /// <param name="providerOptions">The values.</param>
        /// <exception cref="System.NotSupportedException">Always.</exception>
        public void UpdateOptions(Dictionary<string, string> providerOptions)
        {
            throw new NotSupportedException();
        }

        /// <summary>Reads all values.</summary>
        /// <returns>The values as text.</returns>
        /// <exception cref="System.NotSupportedException">Always.</exception>
        public string GetOptions()
        {
            throw new NotSupportedException();
        }

        /// <summary>Does nothing, because there is nothing to free.</summary>
        /// <returns>Always true, because it cannot fail.</returns>
        protected override bool ReleaseHandle()
        {
            return true;
        }
    }

    /// <summary>Settings of the CUDA provider, which does not exist here.</summary>
    public class OrtCUDAProviderOptions : UnavailableProviderOptions
    {
        /// <summary>Fails.</summary>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public OrtCUDAProviderOptions()
            : base((out IntPtr options) => OrtApi.CreateCUDAProviderOptions(out options))
        {
        }
    }

    /// <summary>Settings of the ROCm provider, which does not exist here.</summary>
    public class OrtROCMProviderOptions : UnavailableProviderOptions
    {
        /// <summary>Fails.</summary>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public OrtROCMProviderOptions()
            : base((out IntPtr options) => OrtApi.CreateROCMProviderOptions(out options))
        {
        }
    }

    /// <summary>Settings of the TensorRT provider, which does not exist here.</summary>
    public class OrtTensorRTProviderOptions : UnavailableProviderOptions
    {
        /// <summary>Fails.</summary>
        /// <exception cref="OnnxRuntimeException">Always: the message lists the providers that exist.</exception>
        public OrtTensorRTProviderOptions()
            : base((out IntPtr options) => OrtApi.CreateTensorRTProviderOptions(out options))
        {
        }

        /// <summary>Number of the device.</summary>
        /// <returns>Nothing.</returns>
        /// <exception cref="System.NotSupportedException">Always.</exception>
        public int GetDeviceId()
        {
            throw new NotSupportedException();
        }
    }
}
