// Creating artifacts: the training model of a forward model.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "artifacts/standard_model.h"
#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "graph/onnx_io.h"
#include "infer/typed_model.h"
#include "op/signature.h"
#include "passes/pass.h"

namespace ortrain::capi {

namespace {

// Copies bytes into memory from the allocator.
void give(const std::string& bytes, OrtAllocator* allocator, void** out, size_t* out_length) {
  void* copy = allocate(allocator, bytes.size());
  std::memcpy(copy, bytes.data(), bytes.size());
  *out = copy;
  *out_length = bytes.size();
}

void give_model(const Model& model, OrtAllocator* allocator, void** out, size_t* out_length) {
  give(write_model(model), allocator, out, out_length);
}

// A value and all values from which it is computed.
std::unordered_set<std::string> values_before(const Graph& graph, const std::string& value) {
  std::unordered_set<std::string> before{value};
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node)
    if (std::any_of(node->outputs.begin(), node->outputs.end(),
                    [&](const std::string& output) { return before.contains(output); }))
      for (std::string& read : values_read(*node)) before.insert(std::move(read));
  return before;
}

}  // namespace

void BuildTrainingModel(const void* model_data, size_t model_length, const char* const* trainable_names,
                        size_t trainable_len, const char* const* frozen_names, size_t frozen_len,
                        const char* const* input_names, size_t input_len, const char* loss_name,
                        const char* const* output_names, size_t output_len,
                        const char* const* disabled_passes, size_t disabled_len, OrtAllocator* allocator,
                        void** out, size_t* out_length) {
  const Model forward = load_model(model_data, model_length, "forward model");
  GradientRequest request{texts(trainable_names, trainable_len), loss_name, texts(output_names, output_len)};
  request.inputs = texts(input_names, input_len);
  request.config = without_passes(texts(disabled_passes, disabled_len), PassPhase::kArtifact);
  std::vector<std::string> parameters = request.trainable;
  for (auto& name : texts(frozen_names, frozen_len)) parameters.push_back(std::move(name));
  give_model(build_training_model(forward, request, parameters), allocator, out, out_length);
}

void BuildGradientModel(const void* model_data, size_t model_length, const char* const* value_names,
                        size_t value_len, const char* loss_name, OrtAllocator* allocator, void** out,
                        size_t* out_length) {
  const Model forward = load_model(model_data, model_length, "forward model");
  give_model(build_gradient_model(forward, {texts(value_names, value_len), loss_name, {}}), allocator, out,
             out_length);
}

void UseStandardOperators(const void* model_data, size_t model_length, OrtAllocator* allocator, void** out,
                          size_t* out_length) {
  give_model(standard_model(load_model(model_data, model_length)), allocator, out, out_length);
}

void CreateGradientGraphBuilder(const void* model_data, size_t model_length, const char* const* y_node_names,
                                size_t y_len, const char* const* x_node_names, size_t x_len,
                                const char* loss_name, OrtGradientGraphBuilder** out) {
  GradientRequest request{texts(x_node_names, x_len), loss_name, {}};
  request.cotangents = texts(y_node_names, y_len);
  require(!request.cotangents.empty(), ErrorCode::kInvalidArgument,
          "expected the names of the values to differentiate, found none");
  Model model = load_model(model_data, model_length, "forward model");
  auto& ys = request.cotangents;
  if (std::find(ys.begin(), ys.end(), request.loss) == ys.end()) {
    request.loss.clear();  // it is not differentiated
  } else {
    const std::unordered_set<std::string> before = values_before(model.graph, request.loss);
    std::erase_if(ys, [&](const std::string& y) { return y != request.loss && before.contains(y); });
  }
  *out = new OrtGradientGraphBuilder{std::move(model), std::move(request), std::nullopt};
}

void GradientGraphBuilderBuild(OrtGradientGraphBuilder* builder) {
  const bool nothing = builder->request.trainable.empty();
  builder->built = nothing ? builder->forward : build_gradient_model(builder->forward, builder->request);
}

namespace {

const Model& built(const OrtGradientGraphBuilder* builder) {
  require(builder->built.has_value(), ErrorCode::kFail,
          "the gradients have not been built yet; call build first");
  return *builder->built;
}

}  // namespace

void GradientGraphBuilderGetModel(const OrtGradientGraphBuilder* builder, OrtAllocator* allocator, void** out,
                                  size_t* out_length) {
  give_model(built(builder), allocator, out, out_length);
}

void GradientGraphBuilderSave(const OrtGradientGraphBuilder* builder, const ORTCHAR_T* model_path) {
  write_model(built(builder), std::filesystem::path(model_path));
}

void FindUntrainable(const void* model_data, size_t model_length, const char* const* trainable_names,
                     size_t trainable_len, const char* const* input_names, size_t input_len,
                     const char* loss_name, const char* const* output_names, size_t output_len,
                     OrtAllocator* allocator, char** report) {
  const Model forward = load_model(model_data, model_length, "forward model");
  GradientRequest request{texts(trainable_names, trainable_len), loss_name, texts(output_names, output_len)};
  request.inputs = texts(input_names, input_len);
  *report = copy_text(allocator, find_untrainable(forward, request));
}

void FindUnreached(const void* model_data, size_t model_length, const char* const* trainable_names,
                   size_t trainable_len, const char* loss_name, const char* const* output_names,
                   size_t output_len, OrtAllocator* allocator, char** out) {
  const Model forward = load_model(model_data, model_length, "forward model");
  std::string lines;
  for (const std::string& name : find_unreached(
           forward, {texts(trainable_names, trainable_len), loss_name, texts(output_names, output_len)}))
    lines += name + "\n";
  *out = copy_text(allocator, lines);
}

void ConvertModel(const void* model_data, size_t model_length, const char* format, OrtAllocator* allocator,
                  void** out, size_t* out_length) {
  const std::string wanted = format;
  require(wanted == "ONNX" || wanted == "ORT", ErrorCode::kInvalidArgument,
          "expected the format ONNX or ORT, found '", wanted, "'");
  const Model model = load_model(model_data, model_length);
  give(wanted == "ORT" ? write_ort_model(model) : write_model(model), allocator, out, out_length);
}

}  // namespace ortrain::capi
