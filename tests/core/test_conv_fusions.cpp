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

namespace {

struct Separable {
  int64_t batch = 3, channels = 5, expanded = 12, filters = 7, height = 9, width = 11, kernel = 3, stride = 1;
  bool first = true, last = true, bias = true;
  std::string activation = "Relu";
};

// x → Conv 1x1 → activation → depthwise Conv → activation → Conv 1x1 → y
Model separable_chain(const Separable& s) {
  Model model;
  model.opsets = {{"", 17}};
  Graph& g = model.graph;
  const int64_t channels = s.first ? s.channels : s.expanded;
  g.inputs = {ValueInfo{"x", DType::kFloat,
                        std::vector<Dim>{Dim{-1, "batch"}, Dim{channels, ""}, Dim{-1, "h"}, Dim{-1, "w"}}}};
  std::string value = "x";
  const auto conv = [&](const std::string& name, Shape w, Attributes attributes, bool activated) {
    Node node{"", "Conv", name, {value, name + ".w"}, {name + ".y"}, std::move(attributes)};
    if (s.bias) {
      node.inputs.push_back(name + ".b");
      g.add_initializer(name + ".b", numbers({w[0]}, static_cast<int>(name.size())));
    }
    g.add_initializer(name + ".w", numbers(std::move(w), static_cast<int>(name.size()) + 1));
    g.nodes.push_back(std::move(node));
    value = name + ".y";
    if (!activated || s.activation.empty()) return;
    Node activation{"", s.activation, name + ".activation", {value}, {name + ".a"}, {}};
    if (s.activation == "Clip") activation.inputs = {value, "low", "high"};
    g.nodes.push_back(activation);
    value = name + ".a";
  };
  g.add_initializer("low", Tensor::scalar<float>(-0.25f));
  g.add_initializer("high", Tensor::scalar<float>(0.5f));
  if (s.first) conv("first", {s.expanded, s.channels, 1, 1}, {}, true);
  const int64_t pad = s.kernel / 2;
  conv("middle", {s.expanded, 1, s.kernel, s.kernel},
       {{"group", s.expanded},
        {"pads", std::vector<int64_t>{pad, pad, pad, pad}},
        {"strides", std::vector<int64_t>{s.stride, s.stride}}},
       true);
  if (s.last) conv("last", {s.filters, s.expanded, 1, 1}, {}, false);
  g.nodes.back().outputs = {"y"};
  g.outputs = {ValueInfo{"y", DType::kFloat, std::nullopt}};
  return model;
}

std::vector<float> run(const Model& model, const Separable& s, bool optimized, int threads) {
  SessionOptions options;
  options.intra_op_threads = threads;
  if (!optimized) options.graph_optimization_level = 0;
  InferenceSession session(options, model);
  const Tensor x = numbers({s.batch, model.graph.inputs[0].dims->at(1).value, s.height, s.width}, 7);
  const Tensor y = std::get<Tensor>(session.run({"x"}, {x}, {"y"})[0]);
  return {y.elements<float>().begin(), y.elements<float>().end()};
}

}  // namespace

TEST_CASE("A depthwise convolution and the pointwise ones around it become one node with the same numbers") {
  // Images with few points are computed together, others a few lines at a time, in bands if there are fewer
  // images than threads.
  for (const Separable& s :
       {Separable{}, Separable{.stride = 2}, Separable{.kernel = 5}, Separable{.kernel = 2, .stride = 3},
        Separable{.first = false}, Separable{.last = false}, Separable{.bias = false},
        Separable{.activation = ""}, Separable{.activation = "Clip"},
        Separable{.batch = 1, .expanded = 33, .height = 40, .width = 31, .stride = 2},
        Separable{.batch = 1, .expanded = 300, .height = 30, .width = 29, .kernel = 5},
        Separable{.batch = 7, .height = 3, .width = 2}, Separable{.batch = 5, .height = 1, .width = 1},
        Separable{.batch = 0}})
    for (const int threads : {1, 3}) {
      INFO("first " << s.first << ", last " << s.last << ", kernel " << s.kernel << ", stride " << s.stride
                    << ", image " << s.height << " x " << s.width << ", threads " << threads);
      const Model model = separable_chain(s);
      CHECK(types(passed(model)) == Strings{"ortrain.session.SeparableConv"});
      const std::vector<float> expected = run(model, s, false, 1), found = run(model, s, true, threads);
      REQUIRE(expected.size() == found.size());
      for (size_t i = 0; i < expected.size(); ++i)
        REQUIRE(found[i] == Catch::Approx(expected[i]).epsilon(1e-4).margin(1e-4));
    }
}

TEST_CASE("NaN passes through a separable convolution") {
  const Separable s{.batch = 1, .activation = "Clip"};
  const Model model = separable_chain(s);
  SessionOptions options;
  InferenceSession session(options, model);
  Tensor x = numbers({1, s.channels, s.height, s.width}, 7);
  x.data<float>()[0] = std::nanf("");
  const Tensor y = std::get<Tensor>(session.run({"x"}, {x}, {"y"})[0]);
  for (int64_t c = 0; c < s.filters; ++c)
    for (int64_t i = 0; i < s.height; ++i)
      for (int64_t j = 0; j < s.width; ++j)
        CHECK(std::isnan(y.elements<float>()[static_cast<size_t>((c * s.height + i) * s.width + j)]) ==
              (i < 2 && j < 2));
}

TEST_CASE("A block that is not separable stays") {
  const auto stays = [](const std::function<void(Graph&)>& change) {
    Model model = separable_chain({});
    change(model.graph);
    for (const std::string& type : types(passed(model))) CHECK(type != "ortrain.session.SeparableConv");
  };
  stays([](Graph& g) { g.nodes[2].attributes["group"] = int64_t{1}; });
  // Both neighbours read by others.
  stays([](Graph& g) {
    g.outputs.push_back(ValueInfo{"first.a", DType::kFloat, std::nullopt});
    g.outputs.push_back(ValueInfo{"middle.a", DType::kFloat, std::nullopt});
  });
  stays([](Graph& g) {
    for (Node& node : g.nodes)
      if (node.name != "middle" && node.op_type == "Conv")
        node.attributes["strides"] = std::vector<int64_t>{2, 2};
  });
  stays([](Graph& g) {
    for (Node& node : g.nodes)
      if (node.op_type == "Relu") node.op_type = "Sigmoid";
  });
  CHECK(types(passed(separable_chain({}), {{"ortrain.disable_pass.fuse_separable_conv", "1"}})) ==
        Strings{"com.microsoft.FusedConv", "com.microsoft.FusedConv", "Conv"});
}

TEST_CASE("A pointwise convolution between two depthwise ones belongs to the first of them") {
  Model model = separable_chain({});
  Graph& g = model.graph;
  g.nodes.back().outputs = {"between"};
  g.add_initializer("second.w", numbers({7, 1, 3, 3}, 9));
  g.add_initializer("end.w", numbers({4, 7, 1, 1}, 10));
  g.nodes.push_back({"", "Conv", "second", {"between", "second.w"}, {"z"}, {{"group", int64_t{7}}}});
  g.nodes.push_back({"", "Conv", "end", {"z", "end.w"}, {"y"}, {}});
  CHECK(types(passed(model)) == Strings{"ortrain.session.SeparableConv", "ortrain.session.SeparableConv"});
  const Separable s;
  const std::vector<float> expected = run(model, s, false, 1), found = run(model, s, true, 2);
  REQUIRE(expected.size() == found.size());
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(found[i] == Catch::Approx(expected[i]).epsilon(1e-4).margin(1e-4));
}
