#include <functional>

#include "nodes.h"
#include "passes/pass.h"
#include "session/inference_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

Model model_of(std::vector<Node> nodes, int64_t opset) {
  Model model;
  model.opsets = {{"", opset}};
  model.graph.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{-1, "n"}, Dim{4, ""}}}};
  model.graph.outputs = {ValueInfo{"y", DType::kFloat, std::vector<Dim>{Dim{-1, "n"}, Dim{4, ""}}}};
  model.graph.nodes = std::move(nodes);
  return model;
}

const std::vector<int64_t> kLast = {-1};

struct Spelling {
  std::vector<int64_t> axes = kLast;
  bool square_by_mul = false, two_subs = false, swapped = false;
  int64_t opset = 14;
};

Model layer_normalization(const Spelling& s) {
  const auto mean = [&](const std::string& in, const std::string& out) {
    return s.opset >= 18 ? node("ReduceMean", {in, "axes"}, {out})
                         : node("ReduceMean", {in}, {out}, {{"axes", s.axes}});
  };
  const std::string again = s.two_subs ? "d2" : "d";
  std::vector<Node> nodes = {mean("x", "mean"), node("Sub", {"x", "mean"}, {"d"})};
  if (s.two_subs) nodes.push_back(node("Sub", {"x", "mean"}, {"d2"}));
  nodes.push_back(s.square_by_mul ? node("Mul", {again, again}, {"square"})
                                  : node("Pow", {again, "two"}, {"square"}));
  nodes.push_back(mean("square", "var"));
  nodes.push_back(s.swapped ? node("Add", {"eps", "var"}, {"sum"}) : node("Add", {"var", "eps"}, {"sum"}));
  nodes.push_back(node("Sqrt", {"sum"}, {"root"}));
  nodes.push_back(node("Div", {"d", "root"}, {"normal"}));
  nodes.push_back(s.swapped ? node("Mul", {"scale", "normal"}, {"scaled"})
                            : node("Mul", {"normal", "scale"}, {"scaled"}));
  nodes.push_back(s.swapped ? node("Add", {"bias", "scaled"}, {"y"}, {}, "last")
                            : node("Add", {"scaled", "bias"}, {"y"}, {}, "last"));
  Model model = model_of(std::move(nodes), s.opset);
  model.graph.add_initializer("two", Tensor::scalar<float>(2));
  model.graph.add_initializer("eps", Tensor::scalar<float>(1e-5f));
  model.graph.add_initializer("scale", Tensor::of<float>({1, 2, 3, 4}));
  model.graph.add_initializer("bias", Tensor::of<float>({4, 3, 2, 1}));
  model.graph.add_initializer("axes", Tensor::of<int64_t>(s.axes));
  return model;
}

enum class Inverse { kDiv, kReciprocal, kOneOver };

struct RmsSpelling {
  Inverse inverse = Inverse::kOneOver;
  bool square_by_mul = false, swapped = false, casts = false;
};

Model rms_normalization(const RmsSpelling& s) {
  const Attributes to_float = {{"to", static_cast<int64_t>(DType::kFloat)}};
  const std::string x = s.casts ? "wide" : "x", normal = s.casts ? "narrow" : "normal";
  const auto two = [&](const char* type, const std::string& a, const std::string& b, const char* out) {
    return s.swapped ? node(type, {b, a}, {out}) : node(type, {a, b}, {out});
  };
  std::vector<Node> nodes;
  if (s.casts) nodes.push_back(node("Cast", {"x"}, {x}, to_float));
  nodes.push_back(s.square_by_mul ? node("Mul", {x, x}, {"square"}) : node("Pow", {x, "two"}, {"square"}));
  nodes.push_back(node("ReduceMean", {"square"}, {"mean"}, {{"axes", kLast}}));
  nodes.push_back(two("Add", "mean", "eps", "sum"));
  nodes.push_back(node("Sqrt", {"sum"}, {"root"}));
  if (s.inverse == Inverse::kDiv) {
    nodes.push_back(node("Div", {x, "root"}, {"normal"}));
  } else {
    nodes.push_back(s.inverse == Inverse::kReciprocal ? node("Reciprocal", {"root"}, {"inverse"})
                                                      : node("Div", {"one", "root"}, {"inverse"}));
    nodes.push_back(two("Mul", x, "inverse", "normal"));
  }
  if (s.casts) nodes.push_back(node("Cast", {"normal"}, {"narrow"}, to_float));
  nodes.push_back(two("Mul", "scale", normal, "y"));
  Model model = model_of(std::move(nodes), 14);
  model.graph.add_initializer("one", Tensor::scalar<float>(1));
  model.graph.add_initializer("two", Tensor::scalar<float>(2));
  model.graph.add_initializer("eps", Tensor::scalar<float>(1e-5f));
  model.graph.add_initializer("scale", Tensor::of<float>({1, 2, 3, 4}));
  for (const char* value : {"wide", "normal"}) {
    model.graph.value_info[value] = model.graph.inputs[0];
    model.graph.value_info[value].name = value;
  }
  return model;
}

constexpr int kGeluSpellings = 12;  // the first half with erf, the second half with tanh

// The nodes of erf(x / √2), or of tanh(√(2/π) (x + 0.044715 x³)).
std::vector<Node> curve(int spelling) {
  const bool odd = spelling % 2;
  if (spelling < kGeluSpellings / 2)
    return {odd ? node("Mul", {"x", "inverse"}, {"scaled"}) : node("Div", {"x", "root"}, {"scaled"}),
            node("Erf", {"scaled"}, {"curve"})};
  std::vector<Node> cube = {node("Pow", {"x", "three"}, {"cube"})};
  if (odd) cube = {node("Mul", {"x", "x"}, {"square"}), node("Mul", {"square", "x"}, {"cube"})};
  const std::vector<Node> rest = {
      node("Mul", {"cube", "third"}, {"term"}),
      odd ? node("Add", {"term", "x"}, {"argument"}) : node("Add", {"x", "term"}, {"argument"}),
      node("Mul", {"factor", "argument"}, {"scaled"}), node("Tanh", {"scaled"}, {"curve"})};
  cube.insert(cube.end(), rest.begin(), rest.end());
  return cube;
}

std::string gelu_type(int spelling) {
  return spelling < kGeluSpellings / 2 ? "com.microsoft.Gelu" : "com.microsoft.FastGelu";
}

// Each builds Gelu from h = curve(x) + 1.
Model gelu(int spelling, float half = 0.5f) {
  std::vector<Node> nodes = curve(spelling);
  nodes.push_back(spelling % 2 ? node("Add", {"one", "curve"}, {"h"}) : node("Add", {"curve", "one"}, {"h"}));
  switch (spelling / 2 % 3) {
    case 0:
      nodes.push_back(node("Mul", {"x", "h"}, {"m"})), nodes.push_back(node("Mul", {"m", "half"}, {"y"}));
      break;
    case 1:
      nodes.push_back(node("Mul", {"x", "half"}, {"m"})), nodes.push_back(node("Mul", {"m", "h"}, {"y"}));
      break;
    case 2:
      nodes.push_back(node("Mul", {"h", "half"}, {"m"})), nodes.push_back(node("Mul", {"x", "m"}, {"y"}));
      break;
  }
  Model model = model_of(std::move(nodes), 14);
  model.graph.add_initializer("root", Tensor::scalar<float>(1.41421354f));
  model.graph.add_initializer("inverse", Tensor::scalar<float>(0.707106769f));
  model.graph.add_initializer("three", Tensor::scalar<float>(3));
  model.graph.add_initializer("third", Tensor::scalar<float>(0.044715f));
  model.graph.add_initializer("factor", Tensor::scalar<float>(0.797884583f));
  model.graph.add_initializer("one", Tensor::scalar<float>(1));
  model.graph.add_initializer("half", Tensor::scalar<float>(half));
  return model;
}

std::vector<float> run(const Model& model) {
  SessionOptions options;
  options.graph_optimization_level = 0;  // as it is written
  InferenceSession session(options, model);
  const Tensor x = Tensor::of<float>({0.5f, -1, 2, 3, -0.25f, 0, 1, -2}, {2, 4});
  const Tensor y = std::get<Tensor>(session.run({"x"}, {x}, {"y"})[0]);
  return {y.elements<float>().begin(), y.elements<float>().end()};
}

bool uses(const Model& model, const std::string& value) {
  return std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(), [&](const Node& n) {
    return std::find(n.inputs.begin(), n.inputs.end(), value) != n.inputs.end();
  });
}

Strings types(const Model& model) {
  Strings out;
  for (const Node& n : model.graph.nodes) out.push_back(n.qualified_type());
  return out;
}

Model fused(Model model, const std::map<std::string, std::string>& config = {}) {
  run_passes(model, PassPhase::kArtifact, config);
  return model;
}

void check_same_numbers(const Model& a, const Model& b) {
  const std::vector<float> left = run(a), right = run(b);
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i)
    CHECK(left[i] == Catch::Approx(right[i]).epsilon(1e-5).margin(1e-6));
}

}  // namespace

TEST_CASE("Layer normalization becomes one node in every spelling") {
  for (const Spelling& s :
       {Spelling{}, Spelling{.square_by_mul = true}, Spelling{.two_subs = true}, Spelling{.swapped = true},
        Spelling{.axes = {1}}, Spelling{.opset = 18}, Spelling{.square_by_mul = true, .two_subs = true}}) {
    const Model model = layer_normalization(s), one = fused(model);
    CHECK(types(one) == Strings{"LayerNormalization"});
    CHECK(one.graph.nodes[0].inputs == Strings{"x", "scale", "bias"});
    CHECK(one.graph.nodes[0].outputs == Strings{"y"});
    CHECK(one.graph.nodes[0].int_or("axis", 0) == -1);
    CHECK(one.graph.nodes[0].float_or("epsilon", 0) == Catch::Approx(1e-5));
    check_same_numbers(model, one);
  }
}

TEST_CASE("What only looks like layer normalization stays as it is") {
  const auto stays = [](const std::function<void(Model&)>& change) {
    Model model = layer_normalization({});
    change(model);
    const Strings before = types(model);
    CHECK(types(fused(model)) == before);
  };
  // An intermediate value is used elsewhere.
  for (const char* inner : {"mean", "d", "var", "root", "normal", "scaled"})
    stays([&](Model& m) { m.graph.outputs.push_back(ValueInfo{inner, DType::kFloat, std::nullopt}); });
  // Not a square, not the trailing axis, an epsilon that is computed, scales of other shapes.
  stays([](Model& m) { m.graph.initializers["two"] = Tensor::scalar<float>(3); });
  stays([](Model& m) { m.graph.nodes[0].attributes["axes"] = std::vector<int64_t>{0}; });
  stays([](Model& m) { m.graph.nodes[3].attributes["keepdims"] = int64_t{0}; });
  stays([](Model& m) {
    m.graph.remove_initializer("eps");
    m.graph.inputs.push_back(ValueInfo{"eps", DType::kFloat, std::vector<Dim>{}});
  });
  stays([](Model& m) { m.graph.initializers["scale"] = Tensor::scalar<float>(2); });
  stays([](Model& m) { m.graph.initializers["bias"] = Tensor::of<float>({1}); });
}

TEST_CASE("Root mean square normalization becomes one node in every spelling") {
  for (const Inverse inverse : {Inverse::kDiv, Inverse::kReciprocal, Inverse::kOneOver})
    for (int form = 0; form < 8; ++form) {
      const Model model = rms_normalization({.inverse = inverse,
                                             .square_by_mul = form % 2 == 1,
                                             .swapped = form / 2 % 2 == 1,
                                             .casts = form / 4 == 1});
      Model one = fused(model);
      run_passes(one, PassPhase::kSession, {});
      INFO(static_cast<int>(inverse) << ", " << form);
      CHECK(types(one) == Strings{"SimplifiedLayerNormalization"});
      CHECK(one.graph.nodes[0].inputs == Strings{"x", "scale"});
      CHECK(one.graph.nodes[0].outputs == Strings{"y"});
      CHECK(one.graph.nodes[0].int_or("axis", 0) == -1);
      CHECK(one.graph.nodes[0].float_or("epsilon", 0) == Catch::Approx(1e-5));
      check_same_numbers(model, one);
    }
}

TEST_CASE("RMSNormalization becomes the node that has an output for its statistics") {
  Model model = model_of({node("RMSNormalization", {"x", "scale"}, {"y"}, {{"epsilon", 1e-3f}})}, 23);
  model.graph.add_initializer("scale", Tensor::of<float>({1, 2, 3, 4}));
  const Model one = fused(model);
  CHECK(types(one) == Strings{"SimplifiedLayerNormalization"});
  check_same_numbers(model, one);
}

TEST_CASE("What only looks like root mean square normalization stays as it is") {
  const auto stays = [](const RmsSpelling& spelling, const std::function<void(Model&)>& change) {
    Model model = rms_normalization(spelling);
    change(model);
    const Strings before = types(model);
    CHECK(types(fused(model)) == before);
  };
  const RmsSpelling reciprocal{.inverse = Inverse::kReciprocal}, quotient{.inverse = Inverse::kDiv};
  for (const char* inner : {"square", "mean", "root", "inverse", "normal"})
    stays(reciprocal, [&](Model& m) {
      m.graph.outputs.push_back(ValueInfo{inner, DType::kFloat, std::nullopt});
    });
  // Another numerator or power, not the trailing axis, scales of other shapes.
  stays({}, [](Model& m) { m.graph.initializers["one"] = Tensor::scalar<float>(2); });
  stays({}, [](Model& m) { m.graph.initializers["two"] = Tensor::scalar<float>(3); });
  stays({}, [](Model& m) { m.graph.nodes[1].attributes["axes"] = std::vector<int64_t>{0}; });
  stays(quotient, [](Model& m) { m.graph.initializers["scale"] = Tensor::scalar<float>(2); });
  // The deviation of one value divides another.
  stays(quotient, [](Model& m) { m.graph.nodes[4].inputs[0] = "scale"; });
  // A Cast that rounds.
  stays({.casts = true}, [](Model& m) {
    const auto half = static_cast<int64_t>(DType::kFloat16);
    m.graph.nodes[7].attributes["to"] = half;
    m.graph.initializers["scale"] = Tensor(DType::kFloat16, {4});
  });
}

TEST_CASE("Gelu becomes one node in every spelling") {
  for (int spelling = 0; spelling < kGeluSpellings; ++spelling) {
    INFO(spelling);
    const Model model = gelu(spelling), one = fused(model);
    CHECK(types(one) == Strings{gelu_type(spelling)});
    CHECK(one.opsets.at("com.microsoft") == 1);
    check_same_numbers(model, one);
  }
}

TEST_CASE("Gelu becomes one node in sessions too") {
  for (int spelling = 0; spelling < kGeluSpellings; ++spelling) {
    Model model = gelu(spelling);
    run_passes(model, PassPhase::kSession, {});
    CHECK(types(model) == Strings{gelu_type(spelling)});
  }
}

TEST_CASE("What only looks like Gelu stays as it is") {
  for (int spelling = 0; spelling < kGeluSpellings; ++spelling) {
    const Model other_factor = gelu(spelling, 0.75f);
    CHECK(types(fused(other_factor)) == types(other_factor));
    Model wanted_inside = gelu(spelling);
    wanted_inside.graph.outputs.push_back(ValueInfo{"curve", DType::kFloat, std::nullopt});
    CHECK(types(fused(wanted_inside)) == types(wanted_inside));
    Model trained_factor = gelu(spelling);  // a parameter is not a constant
    trained_factor.graph.remove_initializer("half");
    trained_factor.graph.inputs.push_back(ValueInfo{"half", DType::kFloat, std::vector<Dim>{}});
    CHECK(types(fused(trained_factor)) == types(trained_factor));
    for (const char* name : {"three", "third", "factor", "root", "inverse"}) {
      Model other_number = gelu(spelling);
      other_number.graph.initializers[name] = Tensor::scalar<float>(2);
      const Model still = fused(other_number);
      if (uses(gelu(spelling), name)) CHECK(types(still) == types(other_number));
    }
  }
}

TEST_CASE("A fusion can be switched off by name") {
  const Model model = gelu(0), normal = layer_normalization({});
  CHECK(types(fused(model, {{"ortrain.disable_pass.fuse_gelu", "1"}})) == types(model));
  CHECK(types(fused(normal, {{"ortrain.disable_pass.fuse_layer_normalization", "1"}})) == types(normal));
}
