// Execution providers that this library does not have: every call that asks for one says so, and names those
// that are there.
#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {
namespace {

[[noreturn]] void unavailable(const char* provider) {
  std::string list;
  for (const std::string& name : provider_names()) list += (list.empty() ? "" : ", ") + name;
  fail(ErrorCode::kFail, provider, " execution provider is not enabled in this build; available: ", list);
}

}  // namespace

void SessionOptionsAppendExecutionProvider_CUDA(OrtSessionOptions*, const OrtCUDAProviderOptions*) {
  unavailable("CUDA");
}
void SessionOptionsAppendExecutionProvider_CUDA_V2(OrtSessionOptions*, const OrtCUDAProviderOptionsV2*) {
  unavailable("CUDA");
}
void CreateCUDAProviderOptions(OrtCUDAProviderOptionsV2**) { unavailable("CUDA"); }
void UpdateCUDAProviderOptions(OrtCUDAProviderOptionsV2*, const char* const*, const char* const*, size_t) {
  unavailable("CUDA");
}
void UpdateCUDAProviderOptionsWithValue(OrtCUDAProviderOptionsV2*, const char*, void*) {
  unavailable("CUDA");
}
void GetCUDAProviderOptionsByName(const OrtCUDAProviderOptionsV2*, const char*, void**) {
  unavailable("CUDA");
}
void GetCUDAProviderOptionsAsString(const OrtCUDAProviderOptionsV2*, OrtAllocator*, char**) {
  unavailable("CUDA");
}
void ReleaseCUDAProviderOptions(OrtCUDAProviderOptionsV2*) {}  // none can exist
void SetCurrentGpuDeviceId(int) { unavailable("CUDA"); }
void GetCurrentGpuDeviceId(int*) { unavailable("CUDA"); }

void SessionOptionsAppendExecutionProvider_ROCM(OrtSessionOptions*, const OrtROCMProviderOptions*) {
  unavailable("ROCM");
}
void CreateROCMProviderOptions(OrtROCMProviderOptions**) { unavailable("ROCM"); }
void UpdateROCMProviderOptions(OrtROCMProviderOptions*, const char* const*, const char* const*, size_t) {
  unavailable("ROCM");
}
void GetROCMProviderOptionsAsString(const OrtROCMProviderOptions*, OrtAllocator*, char**) {
  unavailable("ROCM");
}
void ReleaseROCMProviderOptions(OrtROCMProviderOptions*) {}

void SessionOptionsAppendExecutionProvider_TensorRT(OrtSessionOptions*, const OrtTensorRTProviderOptions*) {
  unavailable("TensorRT");
}
void SessionOptionsAppendExecutionProvider_TensorRT_V2(OrtSessionOptions*,
                                                       const OrtTensorRTProviderOptionsV2*) {
  unavailable("TensorRT");
}
void CreateTensorRTProviderOptions(OrtTensorRTProviderOptionsV2**) { unavailable("TensorRT"); }
void UpdateTensorRTProviderOptions(OrtTensorRTProviderOptionsV2*, const char* const*, const char* const*,
                                   size_t) {
  unavailable("TensorRT");
}
void UpdateTensorRTProviderOptionsWithValue(OrtTensorRTProviderOptionsV2*, const char*, void*) {
  unavailable("TensorRT");
}
void GetTensorRTProviderOptionsByName(const OrtTensorRTProviderOptionsV2*, const char*, void**) {
  unavailable("TensorRT");
}
void GetTensorRTProviderOptionsAsString(const OrtTensorRTProviderOptionsV2*, OrtAllocator*, char**) {
  unavailable("TensorRT");
}
void ReleaseTensorRTProviderOptions(OrtTensorRTProviderOptionsV2*) {}

void SessionOptionsAppendExecutionProvider_CANN(OrtSessionOptions*, const OrtCANNProviderOptions*) {
  unavailable("CANN");
}
void CreateCANNProviderOptions(OrtCANNProviderOptions**) { unavailable("CANN"); }
void UpdateCANNProviderOptions(OrtCANNProviderOptions*, const char* const*, const char* const*, size_t) {
  unavailable("CANN");
}
void GetCANNProviderOptionsAsString(const OrtCANNProviderOptions*, OrtAllocator*, char**) {
  unavailable("CANN");
}
void ReleaseCANNProviderOptions(OrtCANNProviderOptions*) {}

void SessionOptionsAppendExecutionProvider_Dnnl(OrtSessionOptions*, const OrtDnnlProviderOptions*) {
  unavailable("DNNL");
}
void CreateDnnlProviderOptions(OrtDnnlProviderOptions**) { unavailable("DNNL"); }
void UpdateDnnlProviderOptions(OrtDnnlProviderOptions*, const char* const*, const char* const*, size_t) {
  unavailable("DNNL");
}
void GetDnnlProviderOptionsAsString(const OrtDnnlProviderOptions*, OrtAllocator*, char**) {
  unavailable("DNNL");
}
void ReleaseDnnlProviderOptions(OrtDnnlProviderOptions*) {}

void SessionOptionsAppendExecutionProvider_MIGraphX(OrtSessionOptions*, const OrtMIGraphXProviderOptions*) {
  unavailable("MIGraphX");
}
void SessionOptionsAppendExecutionProvider_OpenVINO(OrtSessionOptions*, const OrtOpenVINOProviderOptions*) {
  unavailable("OpenVINO");
}
void SessionOptionsAppendExecutionProvider_OpenVINO_V2(OrtSessionOptions*, const char* const*,
                                                       const char* const*, size_t) {
  unavailable("OpenVINO");
}
void SessionOptionsAppendExecutionProvider_VitisAI(OrtSessionOptions*, const char* const*, const char* const*,
                                                   size_t) {
  unavailable("VitisAI");
}

void GetExecutionProviderApi(const char* provider_name, uint32_t, const void**) {
  fail(ErrorCode::kInvalidArgument, "the execution provider ", provider_name,
       " has no table of calls; available: CPUExecutionProvider, which has none");
}

}  // namespace ortrain::capi
