// Creating sessions can be stopped.
#include "graph/onnx_io.h"
#include "nodes.h"
#include "session/inference_session.h"
#include "session/training_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

ValueInfo value(const std::string& name, const Shape& shape) {
  std::vector<Dim> dims;
  for (const int64_t dim : shape) dims.push_back(Dim{dim, ""});
  return {name, DType::kFloat, dims};
}

// relu(relu(... x)), of so many nodes.
Model chain(int nodes) {
  Model model;
  model.opsets = {{"", 17}};
  model.graph.inputs = {value("v0", {2, 3})};
  for (int i = 0; i < nodes; ++i)
    model.graph.nodes.push_back(node(i % 2 ? "Relu" : "Gather", {concat("v", i)}, {concat("v", i + 1)}));
  for (Node& one : model.graph.nodes)
    if (one.op_type == "Gather") one.inputs.push_back("index");
  model.graph.add_initializer("index", Tensor::of(std::vector<int64_t>{0, 1}));
  model.graph.outputs = {{concat("v", nodes), DType::kFloat, std::nullopt}};
  return model;
}

// How often the creation of a session asks whether it may continue; it is stopped the `last` time.
int asked(int last, const std::function<void(const SessionOptions&)>& create) {
  struct Stop {};
  int times = 0;
  SessionOptions options;
  options.may_continue = [&] {
    if (++times == last) throw Stop();
  };
  try {
    create(options);
  } catch (const Stop&) {
    CHECK(times == last);
  }
  return times;
}

}  // namespace

TEST_CASE("the creation of an inference session asks at every node whether it may continue") {
  constexpr int kNodes = 50;
  const auto create = [](const SessionOptions& options) { InferenceSession(options, chain(kNodes)); };
  const int times = asked(-1, create);
  CHECK(times > kNodes);
  for (const int last : {1, times / 2, times}) CHECK(asked(last, create) == last);
}

TEST_CASE("the creation of a training session asks whether it may continue") {
  const std::filesystem::path files = kFixtures / "encoder";
  const auto create = [&](const SessionOptions& options) {
    TrainingSession(options, CheckpointState::load(files / "checkpoint"),
                    read_model(files / "training_model.onnx"), std::nullopt, std::nullopt);
  };
  const int times = asked(-1, create);
  CHECK(times > 100);
  for (const int last : {1, times / 2, times}) CHECK(asked(last, create) == last);
}
