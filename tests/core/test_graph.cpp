#include "graph/graph.h"

#include "nodes.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

Node node(const std::string& type, const std::string& name, std::vector<std::string> inputs,
          std::vector<std::string> outputs) {
  return test::node(type, std::move(inputs), std::move(outputs), {}, name);
}

ValueInfo value(const std::string& name) { return {name, DType::kFloat, std::nullopt, false}; }

std::vector<std::string> order(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& n : graph.nodes) names.push_back(n.name);
  return names;
}

}  // namespace

TEST_CASE("Nodes are put into an order in which values are made before they are used") {
  Graph g;
  g.inputs = {value("x")};
  g.outputs = {value("d")};
  g.nodes = {node("Add", "last", {"b", "c"}, {"d"}), node("Relu", "second", {"a"}, {"b"}),
             node("Relu", "first", {"x"}, {"a"}), node("Neg", "third", {"a"}, {"c"})};
  g.sort();
  CHECK(order(g) == std::vector<std::string>{"first", "second", "third", "last"});

  SECTION("an order that is right already stays as it is") {
    g.nodes = {node("Relu", "z", {"x"}, {"a"}), node("Neg", "y", {"x"}, {"c"}),
               node("Abs", "w", {"x"}, {"b"}), node("Add", "v", {"b", "c"}, {"d"})};
    g.sort();
    CHECK(order(g) == std::vector<std::string>{"z", "y", "w", "v"});
  }
}

TEST_CASE("A cycle is named by its nodes") {
  Graph g;
  g.inputs = {value("x")};
  g.outputs = {value("e")};
  g.nodes = {node("Add", "one", {"x", "c"}, {"a"}), node("Relu", "two", {"a"}, {"b"}),
             node("Relu", "three", {"b"}, {"c"}), node("Neg", "behind", {"c"}, {"e"})};
  const Error error = error_of([&] { g.sort(); });
  CHECK(static_cast<int>(error.code()) == static_cast<int>(ErrorCode::kInvalidGraph));
  for (const char* name : {"\"one\"", "\"two\"", "\"three\""})
    CHECK(error.message().find(name) != std::string::npos);
  CHECK(error.message().find("behind") == std::string::npos);

  g.nodes = {node("Relu", "self", {"e"}, {"e"})};
  check_error(ErrorCode::kInvalidGraph, {"cycle", "\"self\" (Relu) -> node \"self\" (Relu)"},
              [&] { g.sort(); });
}

TEST_CASE("All missing values are named at once, each with the node that wants it") {
  Graph g;
  g.outputs = {value("c"), value("nowhere")};
  g.nodes = {node("Relu", "n1", {"p"}, {"a"}), node("Add", "", {"a", "q"}, {"c"})};
  check_error(
      ErrorCode::kInvalidGraph,
      {"\"p\", read by node \"n1\" (Relu)", "\"q\", read by node producing \"c\" (Add)", "\"nowhere\""},
      [&] { g.sort(); });
}

TEST_CASE("A value that is produced twice is named with both producers") {
  Graph g;
  g.inputs = {value("x")};
  g.outputs = {value("y")};
  g.nodes = {node("Relu", "n1", {"x"}, {"y"}), node("Neg", "n2", {"x"}, {"y"})};
  check_error(ErrorCode::kInvalidGraph, {"\"y\"", "\"n1\"", "\"n2\""}, [&] { g.sort(); });
  g.nodes = {node("Relu", "n1", {"x"}, {"x"})};
  check_error(ErrorCode::kInvalidGraph, {"\"x\"", "a graph input", "\"n1\""}, [&] { g.sort(); });
  g.add_initializer("w", Tensor::scalar(1.0f));
  g.nodes = {node("Relu", "n1", {"x"}, {"w"})};
  check_error(ErrorCode::kInvalidGraph, {"\"w\"", "an initializer", "\"n1\""}, [&] { g.sort(); });
  CHECK_THROWS_AS(g.add_initializer("w", Tensor::scalar(1.0f)), Error);
}

TEST_CASE("What subgraphs read counts as read by their node") {
  Graph inner;
  inner.outputs = {value("r")};
  inner.nodes = {node("Add", "in2", {"t", "late"}, {"r"}), node("Relu", "in1", {"x"}, {"t"})};
  Graph g;
  g.inputs = {value("x"), value("c")};
  g.outputs = {value("y")};
  Node branch = node("If", "if", {"c"}, {"y"});
  branch.attributes["then_branch"] = std::make_shared<Graph>(inner);
  g.nodes = {branch, node("Neg", "makes late", {"x"}, {"late"}), node("Abs", "unused", {"late"}, {"z"})};
  g.sort();
  CHECK(order(g) == std::vector<std::string>{"makes late", "if", "unused"});
  const auto& sorted = *std::get<std::shared_ptr<Graph>>(g.nodes[1].attributes.at("then_branch"));
  CHECK(order(sorted) == std::vector<std::string>{"in1", "in2"});
  CHECK(values_read(g.nodes[1]) == std::vector<std::string>{"c", "x", "late"});
  const auto uses = count_uses(g);
  CHECK(uses.at("late") == 2);
  CHECK(uses.at("x") == 2);
  CHECK(uses.at("y") == 1);

  g.remove_unused_nodes();
  CHECK(order(g) == std::vector<std::string>{"makes late", "if"});
  CHECK(g.unique_name("t") == "t_1");  // taken in the subgraph

  std::get<std::shared_ptr<Graph>>(g.nodes[1].attributes.at("then_branch"))->nodes[0].inputs = {"nothing"};
  check_error(ErrorCode::kInvalidGraph, {"subgraph of node \"if\" (If)", "\"nothing\"", "\"in1\""},
              [&] { g.sort(); });
}

TEST_CASE("Unique names avoid every name in the graph") {
  Graph g;
  CHECK(g.unique_name("v") == "v");
  g.inputs = {value("v")};
  CHECK(g.unique_name("v") == "v_1");
  g.nodes = {node("Relu", "v_1", {"v"}, {"v_3"})};
  g.add_initializer("v_2", Tensor::scalar(1.0f));
  CHECK(g.unique_name("v") == "v_4");
  g.value_info["v_4"] = value("v_4");
  CHECK(g.unique_name("v") == "v_5");
}

TEST_CASE("Attributes of the wrong type are refused by name") {
  Node n = node("Gemm", "fc", {}, {"y"});
  n.attributes = {{"alpha", 2.0f},
                  {"transB", int64_t{1}},
                  {"mode", std::string("linear")},
                  {"axes", std::vector<int64_t>{1}}};
  CHECK(n.float_or("alpha", 1.0f) == 2.0f);
  CHECK(n.int_or("transA", 7) == 7);
  CHECK(n.int_or("transB", 0) == 1);
  CHECK(n.string_or("mode", "") == "linear");
  CHECK(n.ints_or("axes", {}) == std::vector<int64_t>{1});
  check_error(ErrorCode::kInvalidGraph, {"node \"fc\" (Gemm)", "\"alpha\"", "an integer", "a float"},
              [&] { n.int_or("alpha", 0); });
}

TEST_CASE("What is stated of a value is found wherever it is stated") {
  Graph g;
  g.inputs = {value("x")};
  g.outputs = {value("y")};
  g.value_info["h"] = value("h");
  g.add_initializer("w", Tensor(DType::kInt64, {2, 3}));
  CHECK(g.info("x")->dtype == DType::kFloat);
  CHECK(g.info("y").has_value());
  CHECK(g.info("h").has_value());
  CHECK(g.info("w")->dtype == DType::kInt64);
  CHECK((*g.info("w")->dims)[1].value == 3);
  CHECK_FALSE(g.info("none").has_value());
  g.remove_initializer("w");
  CHECK_FALSE(g.is_initializer("w"));
  CHECK(g.initializer_order.empty());
}
