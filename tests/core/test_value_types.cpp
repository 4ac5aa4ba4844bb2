// What is known about values before any input is given: names inside and outside of subgraphs.
#include "infer/value_types.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nodes.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

ValueInfo untyped(std::string name) { return {std::move(name), DType::kUndefined, std::nullopt}; }

// A graph of six elements x, two integers s0, and a constant s = [3, 2] outside, with this node for y.
Model model_with(Node last) {
  Model model;
  model.opsets = {{"", 17}};
  model.graph.inputs = {{"x", DType::kFloat, {{Dim{6, ""}}}},
                        {"s0", DType::kInt64, {{Dim{2, ""}}}},
                        {"c", DType::kBool, std::vector<Dim>{}}};
  model.graph.outputs = {untyped("y")};
  model.graph.add_initializer("s", Tensor::of(std::vector<int64_t>{3, 2}));
  model.graph.add_initializer("count", Tensor::scalar(int64_t{1}));
  model.graph.nodes = {std::move(last)};
  return model;
}

std::optional<std::vector<Dim>> dims_of_y(const Model& model) { return inferred_outputs(model).at(0).dims; }

}  // namespace

TEST_CASE("A subgraph sees constants of the graph around it") {
  auto then = std::make_shared<Graph>();
  then->nodes = {node("Reshape", {"x", "s"}, {"r"})};
  then->outputs = {untyped("r")};
  const Model model = model_with(node("If", {"c"}, {"y"}, {{"then_branch", then}, {"else_branch", then}}));
  CHECK(dims_of_y(model) == std::vector<Dim>{Dim{3, ""}, Dim{2, ""}});
}

TEST_CASE("The output of a node in a subgraph hides a constant outside that has its name") {
  auto then = std::make_shared<Graph>();
  then->nodes = {node("Identity", {"s0"}, {"s"}), node("Reshape", {"x", "s"}, {"r"})};
  then->outputs = {untyped("r")};
  const Model model = model_with(node("If", {"c"}, {"y"}, {{"then_branch", then}, {"else_branch", then}}));
  CHECK(!dims_of_y(model));
}

TEST_CASE("The input of a body hides a constant outside that has its name") {
  auto body = std::make_shared<Graph>();
  body->inputs = {untyped("i"), untyped("on"), untyped("s")};
  body->nodes = {node("Identity", {"on"}, {"goes_on"}), node("Identity", {"s"}, {"next"}),
                 node("Reshape", {"x", "s"}, {"r"})};
  body->outputs = {untyped("goes_on"), untyped("next"), untyped("r")};
  const Model model = model_with(node("Loop", {"count", "c", "s0"}, {"", "y"}, {{"body", body}}));
  CHECK(!dims_of_y(model));
}

TEST_CASE("The number of a type that does not exist is a problem of its node") {
  for (const std::string type : {"Cast", "SequenceEmpty"}) {
    const bool casts = type == "Cast";
    const Model model = model_with(
        node(type, casts ? Strings{"x"} : Strings{}, {"y"}, {{casts ? "to" : "dtype", int64_t{65536}}}));
    const ValueTypes types(model);
    REQUIRE(!types.problems().empty());
    INFO(types.problems().back());
    CHECK(types.problems().back().find("data type 65536") != std::string::npos);
    CHECK(types.info("y").dtype == DType::kUndefined);
  }
}

TEST_CASE("Dimensions that a model states may be too large to be added") {
  Model model = model_with(node("Concat", {"x", "x2"}, {"y"}, {{"axis", int64_t{0}}}));
  const std::vector<Dim> most{Dim{INT64_MAX, ""}};
  model.graph.inputs[0].dims = most;
  model.graph.inputs.push_back({"x2", DType::kFloat, most});
  CHECK(!dims_of_y(model));
}
