// Forward sessions.
#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "graph/onnx_io.h"

namespace ortrain::capi {
namespace {

OrtTypeInfo* type_info_of(const ValueInfo& info) {
  return new OrtTypeInfo{info.is_sequence ? ONNX_TYPE_SEQUENCE : ONNX_TYPE_TENSOR, describe(info)};
}

}  // namespace

void CreateSession(const OrtEnv*, const ORTCHAR_T* model_path, const OrtSessionOptions* options,
                   OrtSession** out) {
  *out = new OrtSession{InferenceSession(options->value, read_model(std::filesystem::path(model_path)))};
}

void CreateSessionFromArray(const OrtEnv*, const void* model_data, size_t model_data_length,
                            const OrtSessionOptions* options, OrtSession** out) {
  *out = new OrtSession{InferenceSession(options->value, read_model(model_data, model_data_length))};
}

void Run(OrtSession* session, const OrtRunOptions* run_options, const char* const* input_names,
         const OrtValue* const* inputs, size_t input_len, const char* const* output_names,
         size_t output_names_len, OrtValue** outputs) {
  require(output_names_len > 0, ErrorCode::kInvalidArgument,
          "output_names_len is 0, expected the name of at least one output");
  auto results = session->session.run(texts(input_names, input_len), tensors(inputs, input_len),
                                      texts(output_names, output_names_len), core_of(run_options));
  // Every given value is checked before any is written.
  for (size_t i = 0; i < results.size(); ++i) {
    if (outputs[i] == nullptr) continue;
    const Tensor& given = outputs[i]->tensor;
    require(given.dtype() == results[i].dtype() && given.shape() == results[i].shape(),
            ErrorCode::kInvalidArgument, "the value given for output ", output_names[i], " is ",
            to_string(given.dtype()), to_string(given.shape()), ", expected ", to_string(results[i].dtype()),
            to_string(results[i].shape()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (outputs[i] == nullptr)
      outputs[i] = new OrtValue{std::move(results[i])};
    else
      outputs[i]->tensor.copy_from(results[i]);
  }
}

void SessionGetInputCount(const OrtSession* session, size_t* out) { *out = session->session.inputs().size(); }
void SessionGetOutputCount(const OrtSession* session, size_t* out) {
  *out = session->session.outputs().size();
}
void SessionGetOverridableInitializerCount(const OrtSession*, size_t* out) { *out = 0; }

void SessionGetInputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  *type_info = type_info_of(item(session->session.inputs(), index, "input"));
}
void SessionGetOutputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  *type_info = type_info_of(item(session->session.outputs(), index, "output"));
}
void SessionGetInputName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, item(session->session.inputs(), index, "input").name);
}
void SessionGetOutputName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, item(session->session.outputs(), index, "output").name);
}

}  // namespace ortrain::capi
