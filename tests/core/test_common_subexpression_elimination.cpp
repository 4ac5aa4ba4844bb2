// Which nodes the pass common_subexpression_elimination merges, and which it keeps apart.
#include <cmath>
#include <limits>

#include "graph/same_bits.h"
#include "passes/pass.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

// The number of nodes that the passes of a session leave of two with these attributes.
size_t left(const std::string& type, const Attributes& first, const Attributes& second,
            const std::vector<std::string>& inputs = {"x"}) {
  Model model;
  model.opsets = {{"", 17}};
  model.graph.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{4, ""}}},
                        ValueInfo{"yes", DType::kBool, std::vector<Dim>{}}};
  model.graph.outputs = {ValueInfo{"y", DType::kFloat, std::nullopt}};
  model.graph.nodes = {Node{"", type, "first", inputs, {"a"}, first},
                       Node{"", type, "second", inputs, {"b"}, second},
                       Node{"", "Sub", "last", {"a", "b"}, {"y"}, {}}};
  run_passes(model, PassPhase::kSession, {}, static_cast<int>(PassLevel::kBasic));
  return model.graph.nodes.size() - 1;
}

size_t left(const std::string& type, const std::string& name, const Attribute& first,
            const Attribute& second) {
  return left(type, {{name, first}}, {{name, second}});
}

Tensor number(float value) { return Tensor::of<float>({value}, {1}); }

// A branch that adds a constant, or draws.
std::shared_ptr<Graph> branch(float constant, const std::string& type = "Add") {
  Graph graph;
  graph.add_initializer("c", number(constant));
  graph.outputs = {ValueInfo{"out", DType::kFloat, std::nullopt}};
  const std::vector<std::string> inputs =
      type == "Add" ? std::vector<std::string>{"x", "c"} : std::vector<std::string>{"x"};
  graph.nodes = {Node{"", type, "inside", inputs, {"out"}, {}}};
  return std::make_shared<Graph>(std::move(graph));
}

size_t left_of_ifs(const std::shared_ptr<Graph>& first, const std::shared_ptr<Graph>& second) {
  return left("If", {{"then_branch", first}, {"else_branch", branch(0)}},
              {{"then_branch", second}, {"else_branch", branch(0)}}, {"yes"});
}

}  // namespace

TEST_CASE("nodes with the same attributes become one") {
  CHECK(left("LeakyRelu", "alpha", 0.1f, 0.1f) == 1);
  CHECK(left("ReduceSum", "keepdims", int64_t{1}, int64_t{1}) == 1);
  CHECK(left("Transpose", "perm", std::vector<int64_t>{0}, std::vector<int64_t>{0}) == 1);
  CHECK(left("Gelu", "approximate", std::string("tanh"), std::string("tanh")) == 1);
  CHECK(left("ConstantOfShape", {{"value", number(2)}}, {{"value", number(2)}}) == 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(left("ConstantOfShape", {{"value", number(nan)}}, {{"value", number(nan)}}) == 1);
  CHECK(left("LeakyRelu", "alpha", nan, nan) == 1);
  CHECK(left_of_ifs(branch(3), branch(3)) == 1);
}

TEST_CASE("floats that print alike are told apart") {
  CHECK(left("LeakyRelu", "alpha", 0.1f, 0.1000002f) == 2);
  CHECK(left("ThresholdedRelu", "alpha", 1000001.f, 1000002.f) == 2);
  CHECK(left("LeakyRelu", "alpha", 0.f, -0.f) == 2);
  CHECK(left("Upsample", "scales", std::vector<float>{0.1f}, std::vector<float>{0.1000002f}) == 2);
}

TEST_CASE("attributes that differ keep nodes apart") {
  CHECK(left("ReduceSum", "keepdims", int64_t{1}, int64_t{0}) == 2);
  // Lists whose elements are the same when concatenated.
  CHECK(left("Transpose", "perm", std::vector<int64_t>{1, 2}, std::vector<int64_t>{12}) == 2);
  CHECK(left("Gelu", "approximate", std::string("tanh"), std::string("none")) == 2);
  // The same text divided differently into name and value.
  CHECK(left("Gelu", {{"a", std::string("b;c=d")}}, {{"a", std::string("b")}, {"c", std::string("d")}}) == 2);
  CHECK(left("ConstantOfShape", {{"value", number(0.f)}}, {{"value", number(-0.f)}}) == 2);
  CHECK(left("ConstantOfShape", {{"value", number(1)}},
             {{"value", Tensor::of<int32_t>({0x3F800000}, {1})}}) == 2);
  CHECK(left_of_ifs(branch(3), branch(4)) == 2);
}

TEST_CASE("nodes whose subgraphs draw stay apart") {
  CHECK(left_of_ifs(branch(3, "RandomNormalLike"), branch(3, "RandomNormalLike")) == 2);
}

TEST_CASE("attributes that are the same have one hash") {
  const Attributes a = {{"alpha", 0.1f}, {"value", number(2)}, {"body", branch(1)}};
  const Attributes b = {{"alpha", 0.1f}, {"value", number(2)}, {"body", branch(1)}};
  CHECK(same_bits(a, b));
  CHECK(hash_bits(a) == hash_bits(b));
}
