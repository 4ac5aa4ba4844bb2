// Making artifacts: the training model of a forward model.
#include <cstring>

#include "autodiff/gradient_builder.h"
#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "graph/onnx_io.h"

namespace ortrain::capi {

namespace {

// The model's bytes, in memory of the allocator.
void give_model(const Model& model, OrtAllocator* allocator, void** out, size_t* out_length) {
  const std::string bytes = write_model(model);
  void* copy = allocate(allocator, bytes.size());
  std::memcpy(copy, bytes.data(), bytes.size());
  *out = copy;
  *out_length = bytes.size();
}

}  // namespace

void BuildTrainingModel(const void* model_data, size_t model_length, const char* const* trainable_names,
                        size_t trainable_len, const char* const* frozen_names, size_t frozen_len,
                        const char* loss_name, const char* const* output_names, size_t output_len,
                        OrtAllocator* allocator, void** out, size_t* out_length) {
  const Model forward = read_model(model_data, model_length, "forward model");
  const GradientRequest request{texts(trainable_names, trainable_len), loss_name,
                                texts(output_names, output_len)};
  std::vector<std::string> parameters = request.trainable;
  for (auto& name : texts(frozen_names, frozen_len)) parameters.push_back(std::move(name));
  give_model(build_training_model(forward, request, parameters), allocator, out, out_length);
}

void BuildGradientModel(const void* model_data, size_t model_length, const char* const* value_names,
                        size_t value_len, const char* loss_name, OrtAllocator* allocator, void** out,
                        size_t* out_length) {
  const Model forward = read_model(model_data, model_length, "forward model");
  give_model(build_gradient_model(forward, {texts(value_names, value_len), loss_name, {}}), allocator, out,
             out_length);
}

void FindUntrainable(const void* model_data, size_t model_length, const char* const* trainable_names,
                     size_t trainable_len, const char* loss_name, const char* const* output_names,
                     size_t output_len, OrtAllocator* allocator, char** report) {
  const Model forward = read_model(model_data, model_length, "forward model");
  *report = copy_text(allocator, find_untrainable(forward, {texts(trainable_names, trainable_len), loss_name,
                                                            texts(output_names, output_len)}));
}

}  // namespace ortrain::capi
