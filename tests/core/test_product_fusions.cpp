#include <cmath>

#include "passes/pass.h"
#include "session/inference_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

using Strings = std::vector<std::string>;

const std::string kFused = "ortrain.session.FusedProduct";

template <typename T>
Tensor numbers(Shape shape, int seed) {
  Tensor t(dtype_of<T>(), std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i)
    t.data<T>()[i] = static_cast<T>(std::sin(0.7 * static_cast<double>(i) + seed));
  return t;
}

struct Input {
  std::string name;
  Shape shape;
};

// A model of these nodes whose outputs are `outputs`; inputs get values by their position.
struct Case {
  std::vector<Input> inputs;
  std::vector<Node> nodes;
  Strings outputs = {"y"};
};

template <typename T>
Model model_of(const Case& s) {
  Model model;
  model.opsets = {{"", 17}, {"com.microsoft", 1}};
  Graph& g = model.graph;
  for (const Input& input : s.inputs) {
    std::vector<Dim> dims;
    for (const int64_t dim : input.shape) dims.push_back(Dim{dim, ""});
    g.inputs.push_back(ValueInfo{input.name, dtype_of<T>(), dims});
  }
  for (const std::string& output : s.outputs)
    g.outputs.push_back(ValueInfo{output, dtype_of<T>(), std::nullopt});
  g.nodes = s.nodes;
  return model;
}

Strings types(const Model& model) {
  Strings out;
  for (const Node& n : model.graph.nodes) out.push_back(n.qualified_type());
  return out;
}

Strings passed(const Case& s, const std::map<std::string, std::string>& config = {}) {
  Model model = model_of<float>(s);
  run_passes(model, PassPhase::kSession, config);
  return types(model);
}

template <typename T>
void check_same(const Case& s) {
  Strings names;
  std::vector<Value> values;
  for (const Input& input : s.inputs) {
    names.push_back(input.name);
    values.push_back(numbers<T>(input.shape, static_cast<int>(values.size())));
  }
  const auto run = [&](bool optimized) {
    SessionOptions options;
    if (!optimized) options.graph_optimization_level = 0;
    InferenceSession session(options, model_of<T>(s));
    session.run(names, values, s.outputs);  // the second run starts with the memory that the first left
    return session.run(names, values, s.outputs);
  };
  const std::vector<Value> plain = run(false), fused = run(true);
  for (size_t o = 0; o < plain.size(); ++o) {
    const auto &a = std::get<Tensor>(fused[o]), &b = std::get<Tensor>(plain[o]);
    REQUIRE(a.shape() == b.shape());
    for (int64_t i = 0; i < b.size(); ++i) {
      INFO("output " << s.outputs[o] << ", element " << i);
      CHECK(std::abs(a.data<T>()[i] - b.data<T>()[i]) < 2e-5);
    }
  }
}

void check_same(const Case& s) {
  check_same<float>(s);
  check_same<double>(s);
}

Node matmul(const std::string& a, const std::string& b, const std::string& y) {
  return {"", "MatMul", y + "/MatMul", {a, b}, {y}, {}};
}
Node op(const std::string& type, Strings inputs, const std::string& y) {
  return {"", type, y + "/" + type, std::move(inputs), {y}, {}};
}

// Large enough for the library's products, and too small for them.
const std::vector<std::vector<int64_t>> kSizes = {
    {24, 32, 40}, {3, 4, 5}, {1, 32, 40}, {24, 1, 40}, {24, 32, 1}};

}  // namespace

TEST_CASE("A bias and a residual are added inside the product") {
  for (const auto& size : kSizes) {
    const int64_t m = size[0], n = size[1], k = size[2];
    const Case s{{{"a", {2, m, k}}, {"b", {k, n}}, {"bias", {n}}, {"r", {2, m, n}}},
                 {matmul("a", "b", "p"), op("Add", {"bias", "p"}, "q"), op("Add", {"r", "q"}, "y")}};
    CHECK(passed(s) == Strings{kFused});
    check_same(s);
  }
}

TEST_CASE("A product meets a factor") {
  for (const auto& size : kSizes) {
    const int64_t m = size[0], n = size[1], k = size[2];
    const Case s{{{"a", {m, k}}, {"b", {k, n}}, {"r", {m, n}}, {"f", {m, n}}},
                 {matmul("a", "b", "p"), op("Add", {"p", "r"}, "q"), op("Mul", {"f", "q"}, "y")}};
    CHECK(passed(s) == Strings{kFused});
    check_same(s);
  }
}

TEST_CASE("A sum of products and others adds up in the products") {
  const Case s{{{"a", {8, 24, 40}}, {"b", {40, 32}}, {"c", {40, 32}}, {"g", {8, 24, 32}}},
               {op("Tanh", {"g"}, "h"), matmul("a", "b", "p"), matmul("a", "c", "q"), op("Exp", {"g"}, "e"),
                op("Sum", {"q", "h", "e", "p"}, "y")}};
  CHECK(passed(s) == Strings{"Tanh", kFused, kFused, "Exp", "Sum"});
  check_same(s);
}

TEST_CASE("Operands that others read are not overwritten") {
  const Case s{
      {{"a", {24, 40}}, {"b", {40, 32}}, {"g", {24, 32}}},
      {op("Tanh", {"g"}, "h"), matmul("a", "b", "p"), op("Add", {"h", "p"}, "y"), op("Exp", {"h"}, "z")},
      {"y", "z"}};
  CHECK(passed(s) == Strings{"Tanh", kFused, "Exp"});
  check_same(s);
  // The addend is also the factor.
  const Case twice{{{"a", {24, 40}}, {"b", {40, 32}}, {"g", {24, 32}}},
                   {op("Tanh", {"g"}, "h"), matmul("a", "b", "p"), op("Add", {"h", "p"}, "q"),
                    op("Mul", {"h", "q"}, "y")}};
  check_same(twice);
}

TEST_CASE("What broadcasts in some other way is right too") {
  for (const Shape& shape : std::vector<Shape>{{}, {1}, {24, 1}, {1, 1}, {3, 1, 32}, {2, 24, 32}}) {
    const Case s{{{"a", {24, 40}}, {"b", {40, 32}}, {"r", shape}, {"f", {32}}},
                 {matmul("a", "b", "p"), op("Add", {"p", "r"}, "q"), op("Mul", {"q", "f"}, "y")}};
    CHECK(passed(s) == Strings{kFused});
    check_same(s);
  }
}

TEST_CASE("A product that others read stays") {
  const Case s{{{"a", {24, 40}}, {"b", {40, 32}}, {"g", {24, 32}}},
               {matmul("a", "b", "p"), op("Add", {"g", "p"}, "y"), op("Exp", {"p"}, "z")},
               {"y", "z"}};
  CHECK(passed(s) == Strings{"MatMul", "Add", "Exp"});
}

TEST_CASE("Scaled and transposed products are fused") {
  Node product{"com.microsoft", "FusedMatMul", "product",
               {"a", "b"},      {"p"},         {{"transB", int64_t{1}}, {"alpha", 0.5f}}};
  const Case s{{{"a", {4, 24, 40}}, {"b", {4, 32, 40}}, {"r", {4, 24, 32}}, {"bias", {32}}},
               {product, op("Add", {"bias", "p"}, "q"), op("Add", {"r", "q"}, "y")}};
  CHECK(passed(s) == Strings{kFused});
  CHECK(passed(s, {{"ortrain.disable_pass.fuse_product", "1"}}) ==
        Strings{"com.microsoft.FusedMatMul", "Add", "Add"});
  check_same(s);
}

TEST_CASE("An activation keeps its derivative for its gradient") {
  for (const std::string type : {"Gelu", "FastGelu", "QuickGelu"}) {
    const auto node = [&](const std::string& name, Strings inputs, const std::string& y) -> Node {
      return {"com.microsoft", name, y, std::move(inputs), {y}, {}};
    };
    const Case s{{{"a", {24, 40}}, {"b", {40, 32}}, {"d", {24, 32}}},
                 {matmul("a", "b", "x"), node(type, {"x"}, "y"), op("Add", {"y", "d"}, "dy"),
                  node(type + "Grad", {"dy", "x"}, "dx")},
                 {"y", "dx"}};
    CHECK(passed(s) == Strings{"MatMul", "ortrain.session." + type + "AndDerivative", "Add", "Mul"});
    CHECK(passed(s, {{"ortrain.disable_pass.save_activation_derivatives", "1"}})[1] ==
          "com.microsoft." + type);
    check_same(s);
  }
}
