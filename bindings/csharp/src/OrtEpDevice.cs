using System;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A processor that sessions can run on. There is one, the CPU.</summary>
    public class OrtHardwareDevice
    {
        private readonly IntPtr device;

        internal OrtHardwareDevice(IntPtr device)
        {
            this.device = device;
        }

        /// <summary>Its kind.</summary>
        public OrtHardwareDeviceType Type => OrtApi.HardwareDevice_Type(device);

        /// <summary>ID of the vendor; 0 if it is unknown.</summary>
        public uint VendorId => OrtApi.HardwareDevice_VendorId(device);

        /// <summary>Name of the vendor; empty if it is unknown.</summary>
        public string Vendor => NativeText.Read(OrtApi.HardwareDevice_Vendor(device));

        /// <summary>ID of the device; 0 if it is unknown.</summary>
        public uint DeviceId => OrtApi.HardwareDevice_DeviceId(device);

        /// <summary>Metadata of the device.</summary>
        public OrtKeyValuePairs Metadata => new OrtKeyValuePairs(OrtApi.HardwareDevice_Metadata(device));
    }

    /// <summary>An execution provider on a device. There is only the CPU.</summary>
    public class OrtEpDevice
    {
        internal OrtEpDevice(IntPtr device)
        {
            Pointer = device;
        }

        /// <summary>Name of the provider.</summary>
        public string EpName => NativeText.Read(OrtApi.EpDevice_EpName(Pointer));

        /// <summary>Vendor of the provider.</summary>
        public string EpVendor => NativeText.Read(OrtApi.EpDevice_EpVendor(Pointer));

        /// <summary>Metadata of the provider.</summary>
        public OrtKeyValuePairs EpMetadata => new OrtKeyValuePairs(OrtApi.EpDevice_EpMetadata(Pointer));

        /// <summary>Settings of the provider.</summary>
        public OrtKeyValuePairs EpOptions => new OrtKeyValuePairs(OrtApi.EpDevice_EpOptions(Pointer));

        /// <summary>The device.</summary>
        public OrtHardwareDevice HardwareDevice => new OrtHardwareDevice(OrtApi.EpDevice_Device(Pointer));

        /// <summary>The native handle of the device, which belongs to the library.</summary>
        internal IntPtr Pointer { get; }
    }
}
