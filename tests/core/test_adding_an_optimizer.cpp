// An optimizer is added in one place: this file declares one, and sessions, checkpoints and the list of the
// library have it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../../tests/core/test_adding_an_optimizer.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
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

  static Factors<double> factors(const OptimizerStep& s) { return {s.rate, s["kept"]}; }

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
  state.make_moments(optimizer.state_names());
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

}  // namespace ortrain
#endif
