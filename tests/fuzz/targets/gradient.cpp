// Building the gradients of a forward model, and running what was built.
#include "../session_config.h"
#include "../support.h"
#include "artifacts/training_model.h"
#include "fuzz_case.pb.h"
#include "op/signature.h"
#include "session/inference_session.h"
#include "session/training_session.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

// What the library wrote, it can read.
Model written_and_read(const Model& model) {
  const std::string bytes = write_model(model);
  try {
    return load_model(bytes.data(), bytes.size());
  } catch (const Error& error) {
    wrong("the model that was built cannot be read: " + error.message());
  }
}

void run_gradients(const Model& forward, const GradientRequest& request, uint32_t seed) {
  InferenceSession session(small_session(), written_and_read(build_gradient_model(forward, request)));
  InputMaker maker(seed);
  std::vector<std::string> names;
  std::vector<Value> values;
  for (const ValueInfo& info : session.inputs()) {
    auto value = maker.make(info);
    if (!value) return;
    names.push_back(info.name);
    values.push_back(std::move(*value));
  }
  for (const Value& output : session.run(names, values, {}, &short_run())) read_all(output);
}

void train(const Model& forward, const GradientRequest& request, uint32_t seed) {
  const std::vector<std::string>& parameters = forward.graph.initializer_order;
  auto state = std::make_shared<CheckpointState>();
  for (const std::string& name : parameters)
    state->add_parameter(
        name, std::find(request.trainable.begin(), request.trainable.end(), name) != request.trainable.end(),
        forward.graph.initializers.at(name));
  TrainingSession session(small_session(), state,
                          written_and_read(build_training_model(forward, request, parameters)), std::nullopt,
                          std::nullopt);
  InputMaker maker(seed);
  std::vector<Tensor> inputs, outputs(session.output_names(true).size());
  for (const ValueInfo& info : session.inputs(true)) {
    const auto value = maker.make(info);
    if (!value || std::get_if<Tensor>(&*value) == nullptr) return;
    inputs.push_back(std::get<Tensor>(*value));
  }
  std::vector<const Tensor*> given;
  std::vector<Tensor*> wanted;
  for (const Tensor& input : inputs) given.push_back(&input);
  for (Tensor& output : outputs) wanted.push_back(&output);
  session.train_step(given, wanted, &short_run());
  for (const Tensor& output : outputs) read_all(output);
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Gradient given;
  if (!given.ParseFromArray(data, static_cast<int>(size))) return 0;
  const std::string bytes = given.model().SerializeAsString();
  try {
    const Model forward =
        load_model(bytes.data(), bytes.size(), "forward model", {.limits = model_limits(small_session())});
    GradientRequest request;
    request.trainable.assign(given.trainable().begin(), given.trainable().end());
    request.loss = given.loss();
    request.other_outputs.assign(given.other_output().begin(), given.other_output().end());
    request.cotangents.assign(given.cotangent().begin(), given.cotangent().end());
    request.inputs.assign(given.input().begin(), given.input().end());
    request.any_loss_shape = given.any_loss_shape();
    find_untrainable(forward, request);
    if (request.cotangents.empty())
      train(forward, request, given.seed());
    else
      run_gradients(forward, request, given.seed());
  } catch (const Error&) {
  }
  return 0;
}

namespace {

// The name of a value of the model.
std::string some_value(const onnx::ModelProto& model, Random& random) {
  const auto& graph = model.graph();
  std::vector<std::string> names;
  for (const auto& value : graph.input()) names.push_back(value.name());
  for (const auto& value : graph.output()) names.push_back(value.name());
  for (const auto& tensor : graph.initializer()) names.push_back(tensor.name());
  for (const auto& node : graph.node()) names.insert(names.end(), node.output().begin(), node.output().end());
  return names.empty() ? "" : names[below(random, names.size())];
}

void mutate_request(fuzz::Gradient& given, Random& random) {
  google::protobuf::RepeatedPtrField<std::string>* const lists[] = {
      given.mutable_trainable(), given.mutable_other_output(), given.mutable_cotangent(),
      given.mutable_input()};
  auto& list = *lists[below(random, 4)];
  switch (below(random, 5)) {
    case 0:
      given.set_loss(some_value(given.model(), random));
      break;
    case 1:
      given.set_any_loss_shape(!given.any_loss_shape());
      break;
    case 2:
      if (list.size() > 0) list.RemoveLast();
      break;
    default:
      *list.Add() = some_value(given.model(), random);
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_message<fuzz::Gradient>(data, size, max_size, seed,
                                        [](fuzz::Gradient& given, Random& random) {
                                          switch (below(random, 8)) {
                                            case 0:
                                              given.set_seed(static_cast<uint32_t>(below(random, 1000)));
                                              break;
                                            case 1:
                                              mutate_request(given, random);
                                              break;
                                            default:
                                              mutate_model(*given.mutable_model(), random, operators());
                                          }
                                        });
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                            uint8_t* out, size_t max_size, unsigned seed) {
  fuzz::Gradient given, from;
  if (!given.ParseFromArray(a, static_cast<int>(a_size)) || !from.ParseFromArray(b, static_cast<int>(b_size)))
    return 0;
  Random random(seed + 1);
  cross_models(*given.mutable_model(), from.model(), random);
  return store(given, out, max_size);
}
