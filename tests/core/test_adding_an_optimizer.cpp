// An optimizer is added in one place: this file declares one, and sessions, checkpoints, the list of the
// library and the formulas of step models have it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../../tests/core/test_adding_an_optimizer.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <map>
#include <string>
#include <vector>

#include "backend/cpu/optimizer/formula.h"
#include "backend/cpu/optimizer/pass-inl.h"
#include "catch.h"
#include "session/optimizer.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

// w - lr sign(c) with the count c of positive minus negative gradients.
struct Votes {
  static constexpr size_t kStates = 1;
  template <typename T>
  struct Factors {
    T rate, kept;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    return {s.rate, s["kept"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    e.s[0] = f.kept * e.s[0] + sign(e.g);
    e.w = e.w - f.rate * sign(e.s[0]);
  }
};

ORTRAIN_PASSES(Votes)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Votes)

ORTRAIN_OPTIMIZER(Votes, {.name = "votes",
                          .title = "Votes",
                          .formula = "c = kept·c + sign(g); w = w - lr·sign(c)",
                          .source = "this test",
                          .settings = {{"kept", 1, "how much of the count a step keeps", 0}},
                          .states = {{"count", "of positive minus negative gradients"}},
                          .passes = {Votes_passes()}});

Model model_of(float kept) {
  Node node;
  node.domain = "ortrain";
  node.op_type = "Optimizer";
  node.attributes["type"] = std::string("votes");
  node.attributes["kept"] = kept;
  Model model;
  model.graph.nodes.push_back(node);
  return model;
}

}  // namespace

TEST_CASE("An optimizer that one file declares trains, and its state is named in checkpoints") {
  CheckpointState state;
  Tensor weights(DType::kFloat, {37});  // whole vectors and a rest
  for (float& w : weights.elements<float>()) w = 1;
  state.add_parameter("w", true, weights);
  state.make_arenas();
  Optimizer optimizer(model_of(1));
  optimizer.take(state);
  optimizer.make_states(state);
  CHECK(state.optimizer().state_names == std::vector<std::string>{"count"});
  CHECK(optimizer.type() == "Votes");
  const Parameter& w = state.parameter("w");
  for (const float gradient : {2.f, 0.5f, -3.f}) {
    for (float& g : w.gradient.elements<float>()) g = gradient;
    CHECK(optimizer.apply(state, 0.25f, 1, nullptr, GradientRows(state), false));
  }
  for (const float value : w.data.elements<float>()) CHECK(value == 0.25f);
  for (const float count : w.moments[0].elements<float>()) CHECK(count == 1);
  optimizer.set_attribute("group0", "kept", 0);
  CHECK(optimizer.attribute("group0", "kept") == 0);
  CHECK(find_optimizer("votes") != nullptr);
}

TEST_CASE("An optimizer that one file declares has a formula for the step models of other runtimes") {
  const Optimizer optimizer(model_of(0.5f));
  const Formula formula = optimizer.formula(optimizer.groups().front());
  const std::map<std::string, double> inputs{{"w", 1}, {"g", -3}, {"count", 1}, {"rate", 0.25}, {"step", 1}};
  std::vector<double> values;
  const auto value = [&](const FormulaOperand& x) {
    return x.node < 0 ? x.number : values.at(static_cast<size_t>(x.node));
  };
  for (const FormulaNode& node : formula.nodes) {
    if (node.op.empty()) {
      values.push_back(inputs.at(node.input));
      continue;
    }
    const double a = value(node.operands[0]);
    if (node.op == "Sign") {
      values.push_back(a > 0 ? 1 : a < 0 ? -1 : 0);
      continue;
    }
    const double b = value(node.operands[1]);
    REQUIRE((node.op == "Add" || node.op == "Sub" || node.op == "Mul"));
    values.push_back(node.op == "Add" ? a + b : node.op == "Sub" ? a - b : a * b);
  }
  REQUIRE(formula.results.size() == 2);
  CHECK(formula.results[0].first == "w");
  CHECK(value(formula.results[0].second) == 1.25);  // 1 - 0.25 sign(0.5 · 1 + sign(-3))
  CHECK(formula.results[1].first == "count");
  CHECK(value(formula.results[1].second) == -0.5);
  // What is known is computed: a count that is kept whole is not multiplied.
  const Optimizer whole(model_of(1));
  const Formula shorter = whole.formula(whole.groups().front());
  CHECK(shorter.nodes.size() == formula.nodes.size() - 1);
}

}  // namespace ortrain
#endif
