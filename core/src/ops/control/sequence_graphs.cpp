// Graphs over the elements of sequences, and SequenceMap, which becomes such a graph.
//
// The gradient of a sequence is a sequence: the gradient of inserting an element removes that element, the
// gradient of splitting concatenates, and the other gradients are Loops over the elements.
#include <algorithm>

#include "op/decomposition.h"
#include "op/subgraph_context.h"
#include "ops/common/shape_helpers.h"
#include "ops/control/sequence.h"

namespace ortrain {

GraphWriter writer_of(GradientContext& g) {
  return {[&g](const std::string& op_type, const std::vector<std::string>& inputs, size_t output_count,
               NewAttributes attributes) {
            return Inputs(g.emit(op_type, inputs, output_count, attributes)).texts();
          },
          [&g](const std::string& base) { return g.subgraphs().unique(base); }};
}

GraphWriter writer_of(SubgraphContext& s, Graph& graph) {
  const auto unique = [&s](const std::string& base) { return s.unique(base); };
  return {[&graph, unique](const std::string& op_type, const std::vector<std::string>& inputs,
                           size_t output_count, NewAttributes attributes) {
            return add_node(unique, graph, op_type, inputs, output_count, attributes);
          },
          unique};
}

namespace {

// A graph that is built node by node.
struct Body {
  const GraphWriter& w;
  Graph graph;

  explicit Body(const GraphWriter& writer, const std::string& name) : w(writer) {
    graph.name = w.unique(name);
  }
  std::string input(const std::string& base, ValueInfo info = {}) {
    info.name = w.unique(concat(graph.name, "/", base));
    graph.inputs.push_back(info);
    return info.name;
  }
  std::string add(const std::string& op_type, const std::vector<std::string>& inputs,
                  NewAttributes attributes = {}) {
    return add_node(w.unique, graph, op_type, inputs, 1, attributes)[0];
  }
  void output(const std::string& value, ValueInfo info = {}) {
    info.name = value;
    graph.outputs.push_back(std::move(info));
  }
};

const ValueInfo kNumber{"", DType::kInt64, std::vector<Dim>{}}, kYesNo{"", DType::kBool, std::vector<Dim>{}};

ValueInfo typed(DType dtype) { return {"", dtype, std::nullopt}; }

}  // namespace

std::vector<std::string> map_sequences(const GraphWriter& w, const std::vector<std::string>& inputs,
                                       const std::vector<bool>& is_sequence, const Graph& body,
                                       const std::vector<DType>& results) {
  Body loop(w, "map");
  const std::string turn = loop.input("turn", kNumber), condition = loop.input("condition", kYesNo);
  std::vector<std::string> carried, given = {w("SequenceLength", {inputs.at(0)}), ""};
  for (const DType dtype : results) {
    carried.push_back(loop.input("results", sequence_of(typed(dtype))));
    given.push_back(w("SequenceEmpty", {}, {{"dtype", static_cast<int64_t>(dtype)}}));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    Node node;
    node.op_type = is_sequence[i] ? "SequenceAt" : "Identity";
    node.name = w.unique(concat(loop.graph.name, "/", node.op_type));
    node.inputs = {inputs[i]};
    if (is_sequence[i]) node.inputs.push_back(turn);
    node.outputs = {body.inputs[i].name};
    loop.graph.nodes.push_back(std::move(node));
  }
  loop.graph.nodes.insert(loop.graph.nodes.end(), body.nodes.begin(), body.nodes.end());
  for (const std::string& name : body.initializer_order)
    loop.graph.add_initializer(name, body.initializers.at(name));
  for (const auto& [name, info] : body.value_info) loop.graph.value_info.emplace(name, info);
  loop.output(loop.add("Identity", {condition}), kYesNo);
  for (size_t o = 0; o < results.size(); ++o)
    loop.output(loop.add("SequenceInsert", {carried[o], body.outputs[o].name}),
                sequence_of(typed(results[o])));
  return w.emit("Loop", given, results.size(), {{"body", std::make_shared<Graph>(std::move(loop.graph))}});
}

Name zeros_like_value(GradientContext& g, const std::string& like) {
  if (g.subgraphs().info(like).is_sequence)
    return g.keep(zeros_like_sequence(writer_of(g), like, g.dtype(like)));
  return zeros_like(g, like);
}

Name dy_or_zeros_like_value(GradientContext& g, size_t o) {
  const Name dy = g.dy(o);
  return dy.empty() ? zeros_like_value(g, g.want_y(o)) : dy;
}

std::string add_sequences(const GraphWriter& w, const std::string& a, const std::string& b, DType dtype) {
  Body body(w, "add");
  const std::string x = body.input("x", typed(dtype)), y = body.input("y", typed(dtype));
  body.output(body.add("Add", {x, y}));
  return map_sequences(w, {a, b}, {true, true}, body.graph, {dtype})[0];
}

std::string zeros_like_sequence(const GraphWriter& w, const std::string& sequence, DType dtype) {
  Body body(w, "zeros");
  const std::string shape = body.add("Shape", {body.input("x", typed(dtype))});
  body.output(body.add("ConstantOfShape", {shape}, {{"value", Tensor::scalar(dtype, 0).reshaped({1})}}));
  return map_sequences(w, {sequence}, {true}, body.graph, {dtype})[0];
}

std::string dims_of_elements(const GraphWriter& w, const std::string& sequence, int64_t axis) {
  Body body(w, "dims");
  const std::string shape = body.add("Shape", {body.input("x")});
  const std::string at = body.add("Constant", {}, {{"value", Tensor::of(std::vector<int64_t>{axis})}});
  body.output(body.add("Gather", {shape, at}));
  const std::string dims = map_sequences(w, {sequence}, {true}, body.graph, {DType::kInt64})[0];
  return w("ConcatFromSequence", {dims}, {{"axis", int64_t{0}}});
}

namespace {

void types(TypeContext& c) {
  std::vector<ValueInfo> inputs;
  for (size_t i = 0; i < c.node().inputs.size(); ++i) inputs.push_back(element_of(c.input(i)));
  const std::vector<ValueInfo> results = c.body("body", inputs);
  for (size_t o = 0; o < c.node().outputs.size() && o < results.size(); ++o)
    c.output(o, sequence_of(results[o]));
}

// SequenceMap becomes a Loop over the elements.
void decompose(DecompositionContext& e) {
  const Node& node = e.node();
  const auto found = node.attributes.find("body");
  const auto* body =
      found == node.attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
  if (!body || !*body) e.reject("attribute 'body' is missing or not a graph");
  if ((*body)->inputs.size() != node.inputs.size())
    e.reject(concat("its body should have as many inputs as the node, ", node.inputs.size(), ", found ",
                    (*body)->inputs.size()));
  if ((*body)->outputs.size() < node.outputs.size())
    e.reject(concat("its body should have as many outputs as the node, ", node.outputs.size(), ", found ",
                    (*body)->outputs.size()));
  std::vector<bool> is_sequence;
  for (const std::string& input : node.inputs) is_sequence.push_back(e.is_sequence(input));
  if (is_sequence.empty() || !is_sequence[0]) e.reject("input 0 is not a sequence");
  std::vector<DType> results;
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    results.push_back((*body)->outputs[o].dtype);
    if (results.back() == DType::kUndefined)
      e.reject(concat("its body does not declare the element type of output ", o));
  }
  // Outputs keep the names of the node's outputs.
  int names = 0;
  const GraphWriter w{
      [&e](const std::string& op_type, const std::vector<std::string>& inputs, size_t output_count,
           NewAttributes attributes) {
        return Inputs(e.emit(op_type, inputs, output_count, attributes)).texts();
      },
      [&](const std::string& base) { return concat(node.outputs.at(0), "/", base, "_", names++); }};
  const std::vector<std::string> made = map_sequences(w, node.inputs, is_sequence, **body, results);
  for (size_t o = 0; o < made.size(); ++o) e.set(o, made[o]);
}

ORTRAIN_OPERATOR({.type = "SequenceMap",
                  .rules = {.decompose = decompose, .types = types},
                  .traits = {.since = 17, .takes_sequences = true}});

}  // namespace
}  // namespace ortrain
