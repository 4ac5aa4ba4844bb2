// The bounds of gradients that passes/bound_gradients.cpp adds to a graph, compared with the gradients.
#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/passes.h"
#include "program/program.h"
#include "support.h"

using namespace ortrain;

namespace {

constexpr int64_t kRows = 8, kIn = 40, kOut = 60;
const std::string kBuffer = "w_grad.accumulation.buffer";

// A graph that accumulates aᵀ d, or aᵀ d + bᵀ e, in the buffer, compiled for steps that overwrite or add.
template <typename T>
class Accumulation {
 public:
  Accumulation(bool two, int64_t rows = kRows) {
    for (const char* name : {"a", "d", "b", "e"})
      factors_.emplace_back(dtype_of<T>(), Shape{rows, name[0] < 'c' ? kIn : kOut});
    graph_.nodes = {product("a", "d", "g")};
    if (two) {
      graph_.nodes.push_back(product("b", "e", "h"));
      graph_.nodes.push_back({"", "Sum", "sum", {"g", "h"}, {"s"}, {}});
    }
    graph_.nodes.push_back({"com.microsoft",
                            "InPlaceAccumulatorV2",
                            "accumulate",
                            {kBuffer, two ? "s" : "g", "overwrite"},
                            {"updated"},
                            {}});
    graph_.inputs = {ValueInfo{name_of_bound(kBuffer), DType::kDouble, std::vector<Dim>{{1, ""}}}};
    Model model;
    model.graph = graph_;
    CHECK(bound_gradients(model));
    graph_ = model.graph;
    *bound.data<double>() = std::numeric_limits<double>::infinity();
  }

  std::vector<Tensor>& factors() { return factors_; }
  double largest() const {
    double found = 0;
    for (const T g : gradient.elements<T>()) found = std::max(found, std::abs(static_cast<double>(g)));
    return found;
  }
  double known() const { return *bound.data<double>(); }

  void run(bool overwrite) {
    const std::map<std::string, int64_t> opsets = {{"", 17}, {"com.microsoft", 1}};
    ProgramRequest request;
    request.graph = &graph_;
    request.opsets = &opsets;
    request.inputs = {"a", "d", "b", "e"};
    request.example_inputs = factors_;
    request.states = {{kBuffer, gradient}, {name_of_bound(kBuffer), bound}};
    request.constants["overwrite"] = Tensor(DType::kBool, {1});
    *request.constants["overwrite"].data<bool>() = overwrite;
    request.arena = std::make_shared<Arena>();
    std::vector<const Tensor*> inputs;
    for (const Tensor& factor : factors_) inputs.push_back(&factor);
    Program(request).run(inputs, {}, 0);
  }

  Tensor gradient{dtype_of<T>(), {kIn, kOut}}, bound{DType::kDouble, {1}};

 private:
  static Node product(const std::string& x, const std::string& y, const std::string& out) {
    return {"com.microsoft", "FusedMatMul", out, {x, y}, {out}, {{"transA", int64_t{1}}, {"alpha", -1.5f}}};
  }

  Graph graph_;
  std::vector<Tensor> factors_;
};

template <typename T>
void fill(Tensor& tensor, double scale, int seed) {
  for (int64_t i = 0; i < tensor.size(); ++i)
    tensor.data<T>()[i] =
        static_cast<T>(seed == 0 ? scale : scale * std::sin(0.7 * static_cast<double>(i) + seed));
}

}  // namespace

TEMPLATE_TEST_CASE("no gradient is above its bound, and the bound is finite", "", float, double) {
  const bool two = GENERATE(false, true);
  const int seed = GENERATE(0, 1, 2);  // 0: all products of one sign
  Accumulation<TestType> a(two);
  for (int step = 0; step < 6; ++step) {
    for (size_t i = 0; i < a.factors().size(); ++i)
      fill<TestType>(a.factors()[i], std::pow(10.0, (step * 7 + static_cast<int>(i)) % 5 - 2), seed);
    a.run(step == 0 || step == 4);
    CHECK(a.largest() > 0);
    CHECK(a.largest() <= a.known());
    CHECK(a.known() < 1e10);
  }
}

TEST_CASE("the bound is unknown as soon as one factor is not finite, until the gradient is overwritten") {
  const size_t broken = GENERATE(0, 1, 2, 3);
  const float value =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38f);
  Accumulation<float> a(true);
  for (Tensor& factor : a.factors()) fill<float>(factor, 1e3, 0);
  a.run(true);
  CHECK(std::isfinite(a.known()));
  a.factors()[broken].data<float>()[7] = value;
  a.run(false);
  CHECK_FALSE(a.known() <= std::numeric_limits<float>::max());
  a.factors()[broken].data<float>()[7] = 1;
  a.run(false);
  CHECK_FALSE(a.known() <= std::numeric_limits<float>::max());
  a.run(true);
  CHECK(a.known() <= std::numeric_limits<float>::max());
}

TEST_CASE("factors that are larger than the gradient are not read") {
  Accumulation<float> a(false, 100);
  for (Tensor& factor : a.factors()) fill<float>(factor, 1, 0);
  a.run(true);
  CHECK(std::isinf(a.known()));
}
