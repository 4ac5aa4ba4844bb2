// Adapters: files of tensors that runs give to a model.
#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "state/adapter_io.h"

namespace ortrain::capi {

void CreateLoraAdapter(const ORTCHAR_T* adapter_file_path, OrtAllocator*, OrtLoraAdapter** out) {
  *out = new OrtLoraAdapter{read_adapter(std::filesystem::path(adapter_file_path))};
}

void CreateLoraAdapterFromArray(const void* bytes, size_t num_bytes, OrtAllocator*, OrtLoraAdapter** out) {
  *out = new OrtLoraAdapter{read_adapter(bytes, num_bytes)};
}

void RunOptionsAddActiveLoraAdapter(OrtRunOptions* options, const OrtLoraAdapter* adapter) {
  auto& inputs = options->value.adapter_inputs;
  inputs.insert(inputs.end(), adapter->value.parameters.begin(), adapter->value.parameters.end());
}

void CreateLoraAdapterFromValues(const char* const* names, const OrtValue* const* values, size_t count,
                                 int adapter_version, int model_version, OrtLoraAdapter** out) {
  Adapter adapter{adapter_version, model_version, {}};
  for (size_t i = 0; i < count; ++i) adapter.parameters.emplace_back(names[i], tensor_of(*values[i]).clone());
  check_adapter(adapter);
  *out = new OrtLoraAdapter{std::move(adapter)};
}

void SaveLoraAdapter(const OrtLoraAdapter* adapter, const ORTCHAR_T* adapter_file_path) {
  write_adapter(adapter->value, std::filesystem::path(adapter_file_path));
}

void LoraAdapterGetVersions(const OrtLoraAdapter* adapter, int* adapter_version, int* model_version) {
  *adapter_version = adapter->value.version;
  *model_version = adapter->value.model_version;
}

void LoraAdapterGetParameterCount(const OrtLoraAdapter* adapter, size_t* out) {
  *out = adapter->value.parameters.size();
}

void LoraAdapterGetParameterName(const OrtLoraAdapter* adapter, size_t index, OrtAllocator* allocator,
                                 char** out) {
  *out = copy_text(allocator, item(adapter->value.parameters, index, "parameter").first);
}

void LoraAdapterGetParameter(const OrtLoraAdapter* adapter, size_t index, OrtValue** out) {
  *out = new OrtValue{item(adapter->value.parameters, index, "parameter").second};
}

}  // namespace ortrain::capi
