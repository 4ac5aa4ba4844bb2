// What the pass fuse_attention recognizes as attention, and what it does not.
#include <cmath>
#include <functional>

#include "passes/pass.h"
#include "session/inference_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

using Strings = std::vector<std::string>;

constexpr int64_t kBatch = 2, kHeads = 3, kQueries = 4, kKeys = 5, kSize = 6;

ValueInfo input(const std::string& name, const Shape& shape, DType type = DType::kFloat) {
  std::vector<Dim> dims;
  for (const int64_t dim : shape) dims.push_back(Dim{dim, ""});
  return {name, type, dims};
}

Tensor numbers(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor(DType::kFloat, shape);
  for (float& x : tensor.elements<float>()) x = normal(random);
  return tensor;
}

// softmax(q kᵀ / √size) v, of [batch, heads, rows, size], before the steps that a test adds.
struct Steps {
  Model model;
  std::vector<Tensor> values;

  Steps() {
    model.opsets = {{"", 17}};
    take("q", {kBatch, kHeads, kQueries, kSize});
    take("k", {kBatch, kHeads, kKeys, kSize});
    take("v", {kBatch, kHeads, kKeys, kSize});
    constant("root", Tensor::scalar(std::sqrt(static_cast<float>(kSize))));
    add("Transpose", {"k"}, "across", {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  }

  void take(const std::string& name, const Shape& shape) {
    model.graph.inputs.push_back(input(name, shape));
    values.push_back(numbers(shape, static_cast<uint32_t>(values.size() + 1)));
  }
  void constant(const std::string& name, const Tensor& value) { model.graph.add_initializer(name, value); }
  std::string add(const std::string& type, Strings inputs, const std::string& output,
                  Attributes attributes = {}) {
    model.graph.nodes.push_back({"", type, output, std::move(inputs), {output}, std::move(attributes)});
    return output;
  }
  // The scores, scaled.
  std::string scores() { return add("Div", {add("MatMul", {"q", "across"}, "product"), "root"}, "scores"); }
  void finish(const std::string& scores, int64_t axis = -1) {
    add("Softmax", {scores}, "weights", {{"axis", axis}});
    add("MatMul", {"weights", "v"}, "y");
    model.graph.outputs = {{"y", DType::kFloat, std::nullopt}};
  }
};

Model fused(Model model) {
  run_passes(model, PassPhase::kSession);
  return model;
}

size_t count(const Model& model, const std::string& type) {
  return static_cast<size_t>(std::count_if(model.graph.nodes.begin(), model.graph.nodes.end(),
                                           [&](const Node& node) { return node.op_type == type; }));
}

std::vector<std::vector<float>> run(const Steps& steps, bool fuse) {
  SessionOptions options;
  if (!fuse) options.config["ortrain.disable_pass.fuse_attention"] = "1";
  InferenceSession session(options, steps.model);
  Strings names, wanted;
  for (const ValueInfo& in : steps.model.graph.inputs) names.push_back(in.name);
  for (const ValueInfo& out : steps.model.graph.outputs) wanted.push_back(out.name);
  std::vector<std::vector<float>> all;
  for (const Value& value : session.run(names, {steps.values.begin(), steps.values.end()}, wanted)) {
    const std::vector<double> found = std::get<Tensor>(value).to_double();
    all.emplace_back(found.begin(), found.end());
  }
  return all;
}

// One node, and the values that the steps give.
void check_fuses(const Steps& steps) {
  const Model one = fused(steps.model);
  CHECK(count(one, "FusedAttention") == 1);
  CHECK(count(one, "Softmax") == 0);
  CHECK(count(one, "MatMul") == 0);
  const auto found = run(steps, true), expected = run(steps, false);
  REQUIRE(found.size() == expected.size());
  for (size_t o = 0; o < found.size(); ++o) {
    REQUIRE(found[o].size() == expected[o].size());
    for (size_t i = 0; i < found[o].size(); ++i)
      CHECK(found[o][i] == Catch::Approx(expected[o][i]).epsilon(1e-4).margin(1e-5));
  }
}

void check_stays(const Steps& steps) {
  const Model same = fused(steps.model);
  CHECK(count(same, "FusedAttention") == 0);
  CHECK(count(same, "Softmax") == 1);
}

}  // namespace

TEST_CASE("Attention is one node wherever its scale stands") {
  Steps of_scores;
  of_scores.finish(of_scores.scores());
  check_fuses(of_scores);

  Steps of_queries;
  of_queries.add("Div", {"q", "root"}, "scaled");
  of_queries.finish(of_queries.add("MatMul", {"scaled", "across"}, "product"));
  check_fuses(of_queries);

  Steps of_both;  // and computed from the size of a head
  of_both.constant("last", Tensor::scalar(int64_t{3}));
  of_both.constant("half", Tensor::scalar(0.25f));
  of_both.add("Gather", {of_both.add("Shape", {"q"}, "dims"), "last"}, "size", {{"axis", int64_t{0}}});
  of_both.add("Cast", {"size"}, "size_float", {{"to", static_cast<int64_t>(DType::kFloat)}});
  of_both.add("Pow", {"size_float", "half"}, "fourth_root");
  of_both.add("Div", {"q", "fourth_root"}, "q_scaled");
  of_both.add("Div", {"across", "fourth_root"}, "k_scaled");
  of_both.finish(of_both.add("MatMul", {"q_scaled", "k_scaled"}, "product"));
  check_fuses(of_both);

  Steps none;
  none.finish(none.add("MatMul", {"q", "across"}, "product"));
  check_fuses(none);
}

TEST_CASE("Attention is one node with masks that are added") {
  for (const Shape& shape : {Shape{kQueries, kKeys}, Shape{kBatch, 1, 1, kKeys},
                             Shape{1, kHeads, kQueries, kKeys}, Shape{kKeys}, Shape{1, 1}}) {
    INFO(to_string(shape));
    Steps one;
    one.take("mask", shape);
    one.finish(one.add("Add", {"mask", one.scores()}, "masked"));
    check_fuses(one);

    Steps two;
    two.take("bias", {kHeads, kQueries, kKeys});
    two.take("mask", shape);
    two.finish(two.add("Add", {two.add("Add", {two.scores(), "bias"}, "biased"), "mask"}, "masked"));
    check_fuses(two);
  }
}

TEST_CASE("Attention is one node with a mask that replaces scores") {
  for (const bool keeps : {true, false}) {
    Steps steps;
    steps.take("limits", {kQueries, kKeys});
    steps.constant("zero", Tensor::scalar(0.0f));
    steps.constant("low", Tensor::of<float>({-1e9f}));
    steps.add("Greater", {"limits", "zero"}, "seen");
    const std::string scores = steps.scores();
    steps.finish(steps.add("Where", keeps ? Strings{"seen", scores, "low"} : Strings{"seen", "low", scores},
                           "masked"));
    check_fuses(steps);
  }
}

TEST_CASE("Who asks for the shape of scores that are no longer made gets it") {
  Steps steps;  // the mask is expanded to that shape, as by masked_fill
  steps.take("limits", {kBatch, 1, 1, kKeys});
  steps.constant("zero", Tensor::scalar(0.0f));
  steps.constant("low", Tensor::scalar(-1e9f));
  const std::string scores = steps.scores();
  steps.add("Expand",
            {steps.add("Greater", {"limits", "zero"}, "seen"), steps.add("Shape", {scores}, "dims")},
            "expanded");
  steps.finish(steps.add("Where", {"expanded", scores, "low"}, "masked"));
  steps.add("Shape", {"product"}, "inner", {{"start", int64_t{-2}}});
  steps.add("Cast", {"inner"}, "wanted", {{"to", static_cast<int64_t>(DType::kFloat)}});
  steps.model.graph.outputs.push_back({"wanted", DType::kFloat, std::nullopt});
  check_fuses(steps);
  CHECK(run(steps, true)[1] == std::vector<float>{kQueries, kKeys});
}

TEST_CASE("A mask may have more queries and keys than the scores") {
  for (const bool keys : {false, true}) {
    Steps steps;
    steps.model.graph.inputs[0] = input("q", {kBatch, kHeads, 1, kSize});
    steps.values[0] = numbers({kBatch, kHeads, 1, kSize}, 9);
    if (keys) {
      steps.model.graph.inputs[1] = input("k", {kBatch, 1, 1, kSize});
      steps.values[1] = numbers({kBatch, 1, 1, kSize}, 10);
    }
    steps.take("mask", {kQueries, kKeys});
    steps.finish(steps.add("Add", {steps.scores(), "mask"}, "masked"));
    check_fuses(steps);
  }
}

TEST_CASE("What only looks like attention stays as it is") {
  Steps other_axis;
  other_axis.finish(other_axis.scores(), 2);
  check_stays(other_axis);

  for (const char* inner : {"product", "scores", "weights"}) {
    Steps wanted;
    wanted.finish(wanted.scores());
    wanted.model.graph.outputs.push_back({inner, DType::kFloat, std::nullopt});
    check_stays(wanted);
  }

  Steps scale_of_input;
  scale_of_input.take("given", {});
  scale_of_input.finish(scale_of_input.add(
      "Mul", {scale_of_input.add("MatMul", {"q", "across"}, "product"), "given"}, "scores"));
  check_stays(scale_of_input);

  Steps scale_of_head;
  scale_of_head.constant("scales", numbers({kHeads, 1, 1}, 3));
  scale_of_head.finish(scale_of_head.add(
      "Mul", {scale_of_head.add("MatMul", {"q", "across"}, "product"), "scales"}, "scores"));
  check_stays(scale_of_head);

  Steps scaled_after_mask;
  scaled_after_mask.take("mask", {kQueries, kKeys});
  scaled_after_mask.add("Add", {scaled_after_mask.add("MatMul", {"q", "across"}, "product"), "mask"},
                        "masked");
  scaled_after_mask.finish(scaled_after_mask.add("Div", {"masked", "root"}, "scores"));
  check_stays(scaled_after_mask);

  Steps replaced_by_values;
  replaced_by_values.take("others", {kQueries, kKeys});
  replaced_by_values.take("limits", {kQueries, kKeys});
  replaced_by_values.constant("zero", Tensor::scalar(0.0f));
  replaced_by_values.add("Greater", {"limits", "zero"}, "seen");
  replaced_by_values.finish(
      replaced_by_values.add("Where", {"seen", replaced_by_values.scores(), "others"}, "masked"));
  check_stays(replaced_by_values);

  Steps mask_of_more_axes;
  mask_of_more_axes.take("mask", {2, 1, 1, kQueries, kKeys});
  mask_of_more_axes.finish(mask_of_more_axes.add("Add", {mask_of_more_axes.scores(), "mask"}, "masked"));
  check_stays(mask_of_more_axes);
}
