// What a Program stores in bfloat16, and what it does not.
#include <bit>
#include <cmath>

#include "program/program.h"
#include "session/mixed_precision.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

Tensor numbers(Shape shape, int seed) {
  Tensor t(DType::kFloat, std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i)
    t.data<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i) + seed));
  return t;
}

// x → MatMul w1 → Relu → Transpose twice → MatMul w2 → Softmax → y; the value in the middle is an output too.
Graph chain() {
  Graph g;
  const std::vector<int64_t> swapped = {1, 0};
  g.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{96, ""}, Dim{64, ""}}}};
  g.nodes = {{"", "MatMul", "first", {"x", "w1"}, {"a"}, {}},
             {"", "Relu", "relu", {"a"}, {"r"}, {}},
             {"", "Transpose", "there", {"r"}, {"t"}, {{"perm", swapped}}},
             {"", "Transpose", "back", {"t"}, {"u"}, {{"perm", swapped}}},
             {"", "MatMul", "second", {"u", "w2"}, {"b"}, {}},
             {"", "Softmax", "softmax", {"b"}, {"y"}, {}}};
  g.add_initializer("w1", numbers({64, 128}, 1));
  g.add_initializer("w2", numbers({128, 64}, 2));
  return g;
}

struct Result {
  std::vector<Tensor> outputs;
  size_t arena;
};

Result run(const Graph& graph, const std::vector<std::string>& outputs, Precision precision) {
  const std::map<std::string, int64_t> opsets = {{"", 17}};
  const Tensor x = numbers({96, 64}, 3);
  ProgramRequest request;
  request.graph = &graph;
  request.opsets = &opsets;
  request.inputs = {"x"};
  request.example_inputs = {x};
  request.outputs = outputs;
  request.arena = std::make_shared<Arena>();
  request.precision = precision;
  Program program(request);
  Result result;
  for (size_t i = 0; i < outputs.size(); ++i)
    result.outputs.emplace_back(program.output_dtype(i), program.output_shape(i));
  const Tensor* inputs[] = {&x};
  std::vector<Tensor*> places;
  for (Tensor& t : result.outputs) places.push_back(&t);
  program.run(inputs, places, 0);
  result.arena = request.arena->bytes();
  return result;
}

// How far apart two tensors are, as a share of the first.
double apart(const Tensor& exact, const Tensor& found) {
  double square = 0, norm = 0;
  for (int64_t i = 0; i < exact.size(); ++i) {
    const double a = exact.data<float>()[i], b = found.data<float>()[i];
    square += (a - b) * (a - b);
    norm += a * a;
  }
  return std::sqrt(square / norm);
}

// Whether this build has mixed precision.
bool supported() {
  SessionOptions options;
  options.config["ortrain.mixed_precision"] = "bf16";
  return read_precision(options) != Precision::kFloat;
}

bool fits_bfloat16(const Tensor& t) {
  for (int64_t i = 0; i < t.size(); ++i)
    if (std::bit_cast<uint32_t>(t.data<float>()[i]) & 0xffff) return false;
  return true;
}

}  // namespace

TEST_CASE("mixed precision keeps what passes between operators in bfloat16") {
  const Graph graph = chain();
  const Result exact = run(graph, {"y"}, Precision::kFloat);
  for (const Precision precision : {Precision::kBf16Storage, Precision::kBf16}) {
    const Result mixed = run(graph, {"y"}, precision);
    CHECK(mixed.outputs[0].dtype() == DType::kFloat);
    const double error = apart(exact.outputs[0], mixed.outputs[0]);
    CHECK(error < 0.03);
    if (!supported()) continue;
    CHECK(error > 0);
    CHECK(!fits_bfloat16(mixed.outputs[0]));
  }
}

TEST_CASE("what is kept for later takes half the memory in mixed precision") {
  // Layers whose results are all live until they are added up.
  Graph g;
  g.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{96, ""}, Dim{64, ""}}}};
  Node sum{"", "Sum", "sum", {}, {"s"}, {}};
  std::string last = "x";
  for (int i = 0; i < 24; ++i) {
    const std::string n = std::to_string(i);
    g.nodes.push_back({"", "MatMul", "product" + n, {last, "w"}, {"a" + n}, {}});
    g.nodes.push_back({"", "Tanh", "tanh" + n, {"a" + n}, {"t" + n}, {}});
    last = "t" + n;
    sum.inputs.push_back(last);
  }
  g.nodes.push_back(sum);
  g.nodes.push_back({"", "MatMul", "last", {"s", "w"}, {"y"}, {}});
  g.add_initializer("w", numbers({64, 64}, 1));
  const Result exact = run(g, {"y"}, Precision::kFloat), mixed = run(g, {"y"}, Precision::kBf16Storage);
  CHECK(apart(exact.outputs[0], mixed.outputs[0]) < 0.03);
  if (supported()) CHECK(mixed.arena * 4 < exact.arena * 3);
}

TEST_CASE("outputs of the graph are not rounded to bfloat16") {
  const Graph graph = chain();
  const Result exact = run(graph, {"a", "y"}, Precision::kFloat);
  const Result mixed = run(graph, {"a", "y"}, Precision::kBf16Storage);
  // x and w1 are float, and so is their product where the user sees it.
  CHECK(apart(exact.outputs[0], mixed.outputs[0]) < 1e-6);
  CHECK(!fits_bfloat16(mixed.outputs[0]));
}

TEST_CASE("chains without products stay in float") {
  Graph g;
  g.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{96, ""}, Dim{64, ""}}}};
  g.nodes = {{"", "Sigmoid", "one", {"x"}, {"a"}, {}},
             {"", "Add", "two", {"a", "x"}, {"b"}, {}},
             {"", "Tanh", "three", {"b"}, {"y"}, {}}};
  const Result exact = run(g, {"y"}, Precision::kFloat);
  for (const Precision precision : {Precision::kBf16Storage, Precision::kBf16})
    CHECK(apart(exact.outputs[0], run(g, {"y"}, precision).outputs[0]) == 0);
}
