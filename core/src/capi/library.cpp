// The entry point of the library: versions and tables.
#include <cstdio>
#include <string>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "cpu_provider_factory.h"

namespace ortrain::capi {
namespace {

// A program requests the version that it was compiled with; tables only grow at their end, so one table
// serves all versions up to ours.
bool served(uint32_t version, uint32_t newest, const char* what, uint32_t first = 1) {
  if (version >= first && version <= newest) return true;
  std::fprintf(stderr, "ortrain %s: version %u of %s was requested, expected %u to %u\n", ORTRAIN_VERSION,
               version, what, first, newest);
  return false;
}

const OrtApi* ORT_API_CALL get_api(uint32_t version) noexcept {
  return served(version, ORT_API_VERSION, "OrtApi") ? &ort_api : nullptr;
}

#define ORTRAIN_TEXT(x) #x
#define ORTRAIN_TEXT_OF(x) ORTRAIN_TEXT(x)
const char* ORT_API_CALL get_version() noexcept {
  return "1." ORTRAIN_TEXT_OF(ORT_API_VERSION) ".0+ortrain." ORTRAIN_VERSION;
}

}  // namespace

const OrtTrainingApi* GetTrainingApi(uint32_t version) {
  return served(version, ORT_API_VERSION, "OrtTrainingApi") ? &ort_training_api : nullptr;
}

const OrtCompileApi* GetCompileApi() { return &ort_compile_api; }
const OrtModelEditorApi* GetModelEditorApi() { return &ort_model_editor_api; }

const char* GetBuildInfoString() {
  static const std::string text = "ortrain " ORTRAIN_VERSION ", compiler: " __VERSION__;
  return text.c_str();
}

void GetAvailableProviders(char*** out_ptr, int* provider_length) {
  const auto& names = provider_names();
  char** list = static_cast<char**>(allocate(default_allocator(), names.size() * sizeof(char*)));
  for (size_t i = 0; i < names.size(); ++i) list[i] = copy_text(default_allocator(), names[i]);
  *out_ptr = list;
  *provider_length = static_cast<int>(names.size());
}

void ReleaseAvailableProviders(char** ptr, int providers_length) {
  for (int i = 0; ptr != nullptr && i < providers_length; ++i) AllocatorFree(default_allocator(), ptr[i]);
  AllocatorFree(default_allocator(), ptr);
}

void DeviceCount(size_t* out) { *out = device_names().size(); }
void DeviceName(size_t index, OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator, item(device_names(), index, "device"));
}

const OrtApiBase* api_base() noexcept {
  static const OrtApiBase base{get_api, get_version};
  return &base;
}

}  // namespace ortrain::capi

extern "C" {

const OrtApiBase* ORT_API_CALL OrtGetApiBase(void) noexcept { return ortrain::capi::api_base(); }

OrtStatus* ORT_API_CALL OrtSessionOptionsAppendExecutionProvider_CPU(OrtSessionOptions* options,
                                                                     int use_arena) noexcept {
  using namespace ortrain::capi;
  return guarded("OrtSessionOptionsAppendExecutionProvider_CPU", [&] {
    check_pointer(options, "options");
    options->value.cpu_memory_arena = use_arena != 0;
  });
}

// A version of OrtrainApi means one layout forever (tests/abi/test_own_table.py), so calls are only appended.
// Version 1 had several layouts before the first release. The library cannot know with which of them a
// program was compiled, and calls with the wrong arguments would read arbitrary memory, so version 1 is
// refused.
const OrtrainApi* ORT_API_CALL OrtrainGetApi(uint32_t version) noexcept {
  using namespace ortrain::capi;
  return served(version, ORTRAIN_API_VERSION, "OrtrainApi", ORTRAIN_FIRST_API_VERSION) ? &ortrain_api
                                                                                       : nullptr;
}
}
