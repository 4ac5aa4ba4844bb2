// Bindings: inputs and outputs that a session uses in every run.
#include "session/io_binding.h"

#include <cstring>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {

void CreateIoBinding(OrtSession* session, OrtIoBinding** out) { *out = new OrtIoBinding{session, {}}; }

void BindInput(OrtIoBinding* binding_ptr, const char* name, const OrtValue* val_ptr) {
  GivenValues given;
  add_input(*binding_ptr->session, name, *val_ptr, given);
  for (size_t i = 0; i < given.names.size(); ++i)
    binding_ptr->binding.bind_input(binding_ptr->session->session(), given.names[i], given.values[i]);
}

void BindOutput(OrtIoBinding* binding_ptr, const char* name, const OrtValue* val_ptr) {
  binding_ptr->binding.bind_output(binding_ptr->session->session(), name, tensor_of(*val_ptr));
}

void BindOutputToDevice(OrtIoBinding* binding_ptr, const char* name, const OrtMemoryInfo*) {
  binding_ptr->binding.bind_output(binding_ptr->session->session(), name);
}

void RunWithBinding(OrtSession* session, const OrtRunOptions* run_options, const OrtIoBinding* binding_ptr) {
  require(binding_ptr->session == session, ErrorCode::kInvalidArgument,
          "the binding belongs to another session, expected one made for this session");
  binding_ptr->binding.run(session->session(), core_of(run_options));
}

void GetBoundOutputNames(const OrtIoBinding* binding_ptr, OrtAllocator* allocator, char** buffer,
                         size_t** lengths, size_t* count) {
  const std::vector<std::string>& names = binding_ptr->binding.output_names();
  *buffer = nullptr;
  *lengths = nullptr;
  *count = names.size();
  if (names.empty()) return;
  std::string all;
  for (const std::string& name : names) all += name;
  auto* sizes = static_cast<size_t*>(allocate(allocator, names.size() * sizeof(size_t)));
  for (size_t i = 0; i < names.size(); ++i) sizes[i] = names[i].size();
  try {
    *buffer = copy_text(allocator, all);
  } catch (...) {
    allocator->Free(allocator, sizes);
    throw;
  }
  *lengths = sizes;
}

void GetBoundOutputValues(const OrtIoBinding* binding_ptr, OrtAllocator* allocator, OrtValue*** output,
                          size_t* output_count) {
  const std::vector<Value>& values = binding_ptr->binding.outputs();
  *output = nullptr;
  *output_count = values.size();
  if (values.empty()) return;
  std::vector<std::unique_ptr<OrtValue>> made;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto* tensor = std::get_if<Tensor>(&values[i]);
    const bool computed = tensor == nullptr || tensor->defined();
    const std::string& name = binding_ptr->binding.output_names()[i];
    made.push_back(std::make_unique<OrtValue>(computed ? output_of(*binding_ptr->session, name, values[i])
                                                       : OrtValue{Nothing{}}));
  }
  *output = static_cast<OrtValue**>(allocate(allocator, made.size() * sizeof(OrtValue*)));
  for (size_t i = 0; i < made.size(); ++i) (*output)[i] = made[i].release();
}

void ClearBoundInputs(OrtIoBinding* binding_ptr) {
  if (binding_ptr != nullptr) binding_ptr->binding.clear_inputs();
}
void ClearBoundOutputs(OrtIoBinding* binding_ptr) {
  if (binding_ptr != nullptr) binding_ptr->binding.clear_outputs();
}
void SynchronizeBoundInputs(OrtIoBinding*) {}
void SynchronizeBoundOutputs(OrtIoBinding*) {}

}  // namespace ortrain::capi
