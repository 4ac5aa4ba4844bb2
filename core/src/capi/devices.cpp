// The device on which sessions run, the CPU, as a list of devices and of execution providers.
#include <algorithm>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "runtime/path.h"

struct OrtHardwareDevice {
  OrtKeyValuePairs metadata;
};
struct OrtEpDevice {
  OrtKeyValuePairs metadata, options;
};

namespace ortrain::capi {
namespace {

const OrtHardwareDevice& cpu() {
  static const OrtHardwareDevice device;
  return device;
}
const OrtEpDevice& cpu_provider() {
  static const OrtEpDevice device;
  return device;
}

void fill(const std::vector<ValueInfo>& values, const OrtEpDevice** devices, size_t count, const char* what) {
  require(count == values.size(), ErrorCode::kInvalidArgument, "the model has ", values.size(), " ", what,
          ", found room for ", count);
  std::fill(devices, devices + count, &cpu_provider());
}

}  // namespace

void GetEpDevices(const OrtEnv*, const OrtEpDevice* const** ep_devices, size_t* num_ep_devices) {
  static const OrtEpDevice* const all[] = {&cpu_provider()};
  *ep_devices = all;
  *num_ep_devices = 1;
}
const char* EpDevice_EpName(const OrtEpDevice*) { return provider_names()[0].c_str(); }
const char* EpDevice_EpVendor(const OrtEpDevice*) { return "ortrain"; }
const OrtKeyValuePairs* EpDevice_EpMetadata(const OrtEpDevice* ep_device) {
  return ep_device ? &ep_device->metadata : nullptr;
}
const OrtKeyValuePairs* EpDevice_EpOptions(const OrtEpDevice* ep_device) {
  return ep_device ? &ep_device->options : nullptr;
}
const OrtHardwareDevice* EpDevice_Device(const OrtEpDevice*) { return &cpu(); }
const OrtMemoryInfo* EpDevice_MemoryInfo(const OrtEpDevice*, OrtDeviceMemoryType memory_type) {
  return memory_type == OrtDeviceMemoryType_DEFAULT ? &cpu_memory() : nullptr;
}

OrtHardwareDeviceType HardwareDevice_Type(const OrtHardwareDevice*) { return OrtHardwareDeviceType_CPU; }
uint32_t HardwareDevice_VendorId(const OrtHardwareDevice*) { return 0; }
const char* HardwareDevice_Vendor(const OrtHardwareDevice*) { return ""; }
uint32_t HardwareDevice_DeviceId(const OrtHardwareDevice*) { return 0; }
const OrtKeyValuePairs* HardwareDevice_Metadata(const OrtHardwareDevice* device) {
  return device ? &device->metadata : nullptr;
}
void GetNumHardwareDevices(const OrtEnv*, size_t* num_devices) { *num_devices = 1; }
void GetHardwareDevices(const OrtEnv*, const OrtHardwareDevice** devices, size_t num_devices) {
  require(num_devices == 1, ErrorCode::kInvalidArgument, "there is 1 device, found room for ", num_devices);
  devices[0] = &cpu();
}

void SessionGetEpDeviceForInputs(const OrtSession* session, const OrtEpDevice** inputs_ep_devices,
                                 size_t num_inputs) {
  fill(session->inputs(), inputs_ep_devices, num_inputs, "inputs");
}
void SessionGetEpDeviceForOutputs(const OrtSession* session, const OrtEpDevice** outputs_ep_devices,
                                  size_t num_outputs) {
  fill(session->outputs(), outputs_ep_devices, num_outputs, "outputs");
}

void SessionOptionsAppendExecutionProvider_V2(OrtSessionOptions*, OrtEnv*,
                                              const OrtEpDevice* const* ep_devices, size_t num_ep_devices,
                                              const char* const*, const char* const*, size_t) {
  require(num_ep_devices > 0, ErrorCode::kInvalidArgument, "expected at least one device, found none");
  for (size_t i = 0; i < num_ep_devices; ++i)
    require(ep_devices[i] == &cpu_provider(), ErrorCode::kInvalidArgument, "device ", i,
            " is not one of GetEpDevices, available: CPUExecutionProvider");
}
void SessionOptionsSetEpSelectionPolicy(OrtSessionOptions*, OrtExecutionProviderDevicePolicy policy) {
  require(policy >= 0 && policy <= OrtExecutionProviderDevicePolicy_MIN_OVERALL_POWER,
          ErrorCode::kInvalidArgument, "there is no policy ", static_cast<int>(policy));
}

// Memory and streams of other devices.
void CreateSharedAllocator(OrtEnv*, const OrtEpDevice*, OrtDeviceMemoryType, OrtAllocatorType,
                           const OrtKeyValuePairs*, OrtAllocator**) {
  fail(ErrorCode::kInvalidArgument,
       "the CPU has no allocators to create, expected a call of GetAllocatorWithDefaultOptions");
}
void ReleaseSharedAllocator(OrtEnv*, const OrtEpDevice*, OrtDeviceMemoryType) {
  fail(ErrorCode::kInvalidArgument, "the CPU has no allocator that was created for a device");
}
void CreateSyncStreamForEpDevice(const OrtEpDevice*, const OrtKeyValuePairs*, OrtSyncStream**) {
  fail(ErrorCode::kInvalidArgument, "the CPU has no streams, expected another device");
}

void GetModelCompatibilityForEpDevices(const OrtEpDevice* const*, size_t num_ep_devices, const char*,
                                       OrtCompiledModelCompatibility* out_status) {
  require(num_ep_devices > 0, ErrorCode::kInvalidArgument, "expected at least one device, found none");
  *out_status = OrtCompiledModelCompatibility_EP_NOT_APPLICABLE;
}

void GetHardwareDeviceEpIncompatibilityDetails(const OrtEnv*, const char* ep_name, const OrtHardwareDevice*,
                                               OrtDeviceEpIncompatibilityDetails** details) {
  require(ep_name == provider_names()[0], ErrorCode::kInvalidArgument, "there is no execution provider ",
          ep_name, ", available: ", provider_names()[0]);
  *details = new OrtDeviceEpIncompatibilityDetails;
}
void DeviceEpIncompatibilityDetails_GetReasonsBitmask(const OrtDeviceEpIncompatibilityDetails*,
                                                      uint32_t* reasons_bitmask) {
  *reasons_bitmask = 0;
}
void DeviceEpIncompatibilityDetails_GetNotes(const OrtDeviceEpIncompatibilityDetails*, const char** notes) {
  *notes = nullptr;
}
void DeviceEpIncompatibilityDetails_GetErrorCode(const OrtDeviceEpIncompatibilityDetails*,
                                                 int32_t* error_code) {
  *error_code = 0;
}

void RegisterExecutionProviderLibrary(OrtEnv*, const char* registration_name, const ORTCHAR_T* path) {
  fail(ErrorCode::kFail, "the library ", to_utf8(path), ", which should be registered as ", registration_name,
       ", was not loaded: there are no execution providers besides CPUExecutionProvider");
}
void UnregisterExecutionProviderLibrary(OrtEnv*, const char* registration_name) {
  fail(ErrorCode::kFail, "no library is registered as ", registration_name);
}

}  // namespace ortrain::capi
