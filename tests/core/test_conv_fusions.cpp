#include <cmath>
#include <functional>

#include "passes/pass.h"
#include "session/inference_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

using Strings = std::vector<std::string>;

// Values in (-1, 1), the same for the same seed.
Tensor numbers(Shape shape, int seed) {
  Tensor t(DType::kFloat, std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i)
    t.data<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + seed));
  return t;
}

struct Chain {
  int64_t channels = 6, filters = 8, groups = 1, opset = 17;
  bool bias = false;
  std::string activation = "Relu";
};

// x → Conv → BatchNormalization → activation → y
Model conv_chain(const Chain& s) {
  Model model;
  model.opsets = {{"", s.opset}};
  Graph& g = model.graph;
  g.inputs = {ValueInfo{"x", DType::kFloat,
                        std::vector<Dim>{Dim{2, ""}, Dim{s.channels, ""}, Dim{5, ""}, Dim{7, ""}}}};
  g.outputs = {ValueInfo{"y", DType::kFloat, std::nullopt}};
  Node conv{"",         "Conv", "conv",
            {"x", "w"}, {"c"},  {{"group", s.groups}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}}};
  if (s.bias) conv.inputs.push_back("b");
  Node activation{"", s.activation, "activation", {"n"}, {"y"}, {}};
  if (s.activation == "Clip") activation.inputs = {"n", "low", "high"};
  if (s.activation == "LeakyRelu") activation.attributes["alpha"] = 0.1f;
  g.nodes = {conv,
             {"",
              "BatchNormalization",
              "bn",
              {"c", "scale", "shift", "mean", "variance"},
              {"n"},
              {{"epsilon", 1e-3f}}},
             activation};
  g.add_initializer("w", numbers({s.filters, s.channels / s.groups, 3, 3}, 1));
  g.add_initializer("b", numbers({s.filters}, 2));
  g.add_initializer("scale", numbers({s.filters}, 3));
  g.add_initializer("shift", numbers({s.filters}, 4));
  g.add_initializer("mean", numbers({s.filters}, 5));
  Tensor variance = numbers({s.filters}, 6);
  for (float& v : variance.elements<float>()) v = 0.3f + v * v;
  g.add_initializer("variance", variance);
  g.add_initializer("low", Tensor::scalar<float>(-0.25f));
  g.add_initializer("high", Tensor::scalar<float>(0.5f));
  return model;
}

std::vector<float> run(const Model& model, bool optimized) {
  SessionOptions options;
  if (!optimized) options.graph_optimization_level = 0;
  InferenceSession session(options, model);
  const Tensor x = numbers({2, model.graph.inputs[0].dims->at(1).value, 5, 7}, 7);
  const Tensor y = std::get<Tensor>(session.run({"x"}, {x}, {"y"})[0]);
  return {y.elements<float>().begin(), y.elements<float>().end()};
}

Strings types(const Model& model) {
  Strings out;
  for (const Node& n : model.graph.nodes) out.push_back(n.qualified_type());
  return out;
}

Model passed(Model model, const std::map<std::string, std::string>& config = {}) {
  run_passes(model, PassPhase::kSession, config);
  return model;
}

}  // namespace

TEST_CASE("Convolution, normalization and activation become one node with the same numbers") {
  for (const Chain& s : {Chain{}, Chain{.bias = true}, Chain{.filters = 6, .groups = 6}, Chain{.groups = 2},
                         Chain{.activation = "Clip"}, Chain{.activation = "LeakyRelu"}, Chain{.opset = 13},
                         Chain{.channels = 16, .filters = 16, .groups = 16, .activation = "Clip"}}) {
    INFO("groups " << s.groups << ", activation " << s.activation << ", opset " << s.opset);
    const Model model = conv_chain(s);
    const Model one = passed(model);
    CHECK(types(one) == Strings{"com.microsoft.FusedConv"});
    CHECK(one.graph.nodes[0].outputs == Strings{"y"});
    const std::vector<float> expected = run(model, false), found = run(model, true);
    REQUIRE(expected.size() == found.size());
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK(found[i] == Catch::Approx(expected[i]).epsilon(1e-5).margin(1e-5));
  }
}

TEST_CASE("A constant that is added to each channel of a convolution becomes its bias") {
  const auto sum_chain = [](Shape shape, bool bias, bool first) {
    Model model = conv_chain({.bias = bias});
    model.graph.nodes[1] = {"", "Add", "sum", {"c", "addend"}, {"n"}, {}};
    if (first) std::swap(model.graph.nodes[1].inputs[0], model.graph.nodes[1].inputs[1]);
    model.graph.add_initializer("addend", numbers(std::move(shape), 8));
    return model;
  };
  for (const bool bias : {false, true})
    for (const Shape& shape : {Shape{1, 8, 1, 1}, Shape{8, 1, 1}}) {
      const Model model = sum_chain(shape, bias, bias);
      CHECK(types(passed(model)) == Strings{"com.microsoft.FusedConv"});
      const std::vector<float> expected = run(model, false), found = run(model, true);
      REQUIRE(expected.size() == found.size());
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(found[i] == Catch::Approx(expected[i]).epsilon(1e-5).margin(1e-5));
    }
  // Not one element for each channel: by column, by row, a scalar, a larger batch.
  for (const Shape& shape : {Shape{7}, Shape{5, 1}, Shape{1}, Shape{2, 8, 1, 1}, Shape{1, 8, 5, 7}})
    CHECK(types(passed(sum_chain(shape, false, false))) == Strings{"Conv", "Add", "Relu"});
  Model read_twice = sum_chain({1, 8, 1, 1}, false, false);
  read_twice.graph.outputs.push_back(ValueInfo{"c", DType::kFloat, std::nullopt});
  CHECK(types(passed(read_twice)) == Strings{"Conv", "Add", "Relu"});
}

TEST_CASE("Each fusion of a convolution can be switched off by name") {
  const Model model = conv_chain({});
  CHECK(types(passed(model, {{"ortrain.disable_pass.fuse_conv_batch_normalization", "1"}})) ==
        Strings{"Conv", "BatchNormalization", "Relu"});
  CHECK(types(passed(model, {{"ortrain.disable_pass.fuse_conv_activation", "1"}})) ==
        Strings{"Conv", "Relu"});
}

TEST_CASE("A normalization that is not constant stays") {
  const auto stays = [](const std::function<void(Graph&)>& change) {
    Model model = conv_chain({});
    change(model.graph);
    CHECK(types(passed(model)) == Strings{"Conv", "BatchNormalization", "Relu"});
  };
  for (const char* name : {"w", "scale", "shift", "mean", "variance"})
    stays([&](Graph& g) {  // it comes from outside, like a trained parameter
      const Tensor value = g.initializers.at(name);
      g.remove_initializer(name);
      std::vector<Dim> dims;
      for (const int64_t dim : value.shape()) dims.push_back(Dim{dim, ""});
      g.inputs.push_back(ValueInfo{name, DType::kFloat, dims});
    });
  stays([](Graph& g) {
    g.outputs.push_back(ValueInfo{"c", DType::kFloat, std::nullopt});
  });  // wanted elsewhere
  stays([](Graph& g) {
    g.nodes[1].attributes["training_mode"] = int64_t{1};
    g.nodes[1].outputs = {"n", "new_mean", "new_variance"};
  });
}

TEST_CASE("An activation stays where the convolution's own result is wanted, or its bounds are not known") {
  Model wanted = conv_chain({});
  wanted.graph.outputs.push_back(ValueInfo{"n", DType::kFloat, std::nullopt});
  CHECK(types(passed(wanted)) == Strings{"Conv", "Relu"});
  Model open = conv_chain({.activation = "Clip"});
  open.graph.remove_initializer("high");
  open.graph.inputs.push_back(ValueInfo{"high", DType::kFloat, std::vector<Dim>{}});
  CHECK(types(passed(open)) == Strings{"Conv", "Clip"});
}
