// An operator that only this file knows. It has several outputs, one of them of integers, a cost, a gradient
// and rows that are independent: everything that passes, plans and sessions need to know is declared here,
// and docs/adding-an-operator.md shows it.
//
// [example]
#include <cmath>

#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/positions.h"

namespace ortrain {
namespace {

// Peaks(X) → Y, Index, Square: for each row of X the value of largest magnitude, its position, and its
// square.
void shape(ShapeContext& c) {
  c.expect(c.rank(0) == 2 && c.shape(0)[1] > 0, "its input must have shape [rows, columns], found ",
           to_string(c.shape(0)));
  const Shape rows = {c.shape(0)[0]};
  c.output(0, c.dtype(0), rows);
  c.output(1, DType::kInt64, rows);
  c.output(2, c.dtype(0), rows);
}

Kernel kernel(KernelContext& c) {
  if (c.dtype(0) != DType::kFloat) c.reject_dtype(0);
  const int64_t rows = c.shape(0)[0], columns = c.shape(0)[1];
  const Slot x = c.in(0), y = c.out(0), index = c.out(1), square = c.out(2);
  return [=](const Frame& f) {
    const float* values = f.at<const float>(x);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t best = 0;
      for (int64_t i = 1; i < columns; ++i)
        if (std::abs(values[r * columns + i]) > std::abs(values[r * columns + best])) best = i;
      const float peak = values[r * columns + best];
      if (y.defined()) f.at<float>(y)[r] = peak;
      if (index.defined()) f.at<int64_t>(index)[r] = best;
      if (square.defined()) f.at<float>(square)[r] = peak * peak;
    }
  };
}

// dX = (dY + 2 Y dSquare) at Index, zeros elsewhere.
void gradient(GradientContext& g) {
  const Name index = g.want_y(1);
  Name d = g.dy(0);
  if (!g.dy(2).empty()) {
    const Expression square(g, g.dy(2)), y(g, g.want_y(0));
    const Expression of_square = square * y * 2.0;
    d = d.empty() ? of_square.name() : (Expression(g, d) + of_square).name();
  }
  const Name zeros = g("ConstantOfShape", {g("Shape", {g.x(0)})});
  g.set(0,
        g("ScatterElements", {zeros, g.unsqueeze(index, {1}), g.unsqueeze(d, {1})}, {{"axis", int64_t{1}}}));
}

Operations operations(const Node&, std::span<const Shape* const> inputs, const Shape&) {
  return {.others = inputs[0] ? 2 * static_cast<double>(element_count(*inputs[0])) : 0};
}

std::optional<InputPositions> positions(const PositionQuery& q) { return InputPositions{{q.axis}}; }

DType element_type(const ElementTypes& t, size_t o) { return o == 1 ? DType::kInt64 : t[0]; }

ORTRAIN_OPERATOR({.domain = "test",
                  .type = "Peaks",
                  .rules = {.shape = shape, .gradient = gradient, .element_type = element_type},
                  .traits = {.independent_outputs = true, .positions = positions, .operations = operations},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
// [example]

#include "artifacts/training_model.h"
#include "infer/value_types.h"
#include "passes/pass.h"
#include "program/program.h"
#include "session/inference_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

ValueInfo value(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  std::vector<Dim> dims;
  for (const int64_t e : shape) dims.push_back(Dim{e, ""});
  return {name, dtype, dims};
}

// Y, Index, Square = Peaks(A W), and the sum of Y and Square as the loss.
Model peaks_model() {
  Model model;
  model.ir_version = 8;
  model.opsets = {{"", 17}, {"test", 1}};
  model.graph.inputs = {value("a", DType::kFloat, {2, 2})};
  model.graph.add_initializer("w", Tensor::of(std::vector<float>{1, -4, 2, 3, 0.5f, -1}, {2, 3}));
  model.graph.nodes = {{"", "MatMul", "product", {"a", "w"}, {"x"}, {}},
                       {"test", "Peaks", "peaks", {"x"}, {"y", "index", "square"}, {}},
                       {"", "Add", "both", {"y", "square"}, {"sum"}, {}},
                       {"", "ReduceSum", "total", {"sum"}, {"loss"}, {{"keepdims", int64_t{0}}}}};
  model.graph.outputs = {value("loss", DType::kFloat, {}), value("index", DType::kInt64, {2})};
  return model;
}

const Tensor kA = Tensor::of(std::vector<float>{1, 0, 1, 1}, {2, 2});

}  // namespace

TEST_CASE("An operator that one file defines is run, with integer outputs") {
  InferenceSession session({}, peaks_model());
  const auto found = session.run({"a"}, {kA}, {});
  // Rows of A W: [1, -4, 2] and [4, -3.5, 1]; y + y² is -4 + 16 and 4 + 16.
  CHECK(std::get<Tensor>(found[0]).to_double() == std::vector<double>{32});
  CHECK(std::get<Tensor>(found[1]).to_int64() == std::vector<int64_t>{1, 0});
}

TEST_CASE("An operator that one file defines is trained, through all of its outputs") {
  const Model gradient = build_gradient_model(peaks_model(), {{"w"}, "loss", {}});
  InferenceSession session({}, gradient);
  const auto found = session.run({"a"}, {kA}, {"w_grad"});
  // dx is 1 + 2 y at the peaks: -7 at [0, 1] and 9 at [1, 0]; dW = Aᵀ dx.
  CHECK(std::get<Tensor>(found[0]).to_double() == std::vector<double>{9, -7, 0, 9, 0, 0});
}

TEST_CASE("What an operator declares of element types is known where shapes are not") {
  Model model = peaks_model();
  model.graph.inputs[0].dims = std::nullopt;
  const ValueTypes types(model);
  CHECK(types.info("index").dtype == DType::kInt64);
  CHECK(types.info("square").dtype == DType::kFloat);
}

TEST_CASE("A selection goes in front of an operator that keeps positions apart") {
  Model model = peaks_model();
  model.graph.nodes[1].outputs = {"y"};
  model.graph.nodes.resize(2);
  model.graph.add_initializer("one", Tensor::of(std::vector<int64_t>{1}));
  model.graph.nodes.push_back({"", "Gather", "second", {"y", "one"}, {"z"}, {}});
  model.graph.outputs = {value("z", DType::kFloat, {1})};
  run_passes(model, PassPhase::kSession);
  const auto product = std::find_if(model.graph.nodes.begin(), model.graph.nodes.end(),
                                    [](const Node& node) { return node.op_type == "MatMul"; });
  REQUIRE(product != model.graph.nodes.end());
  CHECK(product->inputs[0] != "a");  // one row of it alone
  InferenceSession session({}, model);
  CHECK(std::get<Tensor>(session.run({"a"}, {kA}, {})[0]).to_double() == std::vector<double>{4});
}
