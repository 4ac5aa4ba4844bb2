// If: one of two subgraphs, chosen by a condition. If the condition is known when the graph is compiled, the
// branch replaces the node (program/segment_plan.h).
//
// The gradient is an If on the same condition. Its branches recompute the values of the branch that ran and
// then run it backwards; a value that would differ when recomputed, such as the mask of a Dropout, becomes an
// output of the forward node.
#include "ops/control/control_flow.h"

namespace ortrain {
namespace {

void types(TypeContext& c) {
  const std::vector<ValueInfo> yes = c.body("then_branch", {}), no = c.body("else_branch", {});
  for (size_t o = 0; o < c.node().outputs.size() && o < yes.size() && o < no.size(); ++o) {
    c.output(o, either(yes[o], no[o]));
  }
}

class Places : public OutputPlaces {
 public:
  explicit Places(DynamicContext& c) : c_(c) {}
  const Tensor& place(size_t o, DType dtype, const Shape& shape) override {
    return c_.has_output(o) ? c_.out(o, dtype, shape) : c_.buffer(o).reset(dtype, shape);
  }
  void take(size_t o, const ValueRef& value) override { c_.set(o, value); }

 private:
  DynamicContext& c_;
};

void run(DynamicContext& c) {
  const Tensor& condition = c.in(0);
  c.expect(condition.dtype() == DType::kBool && condition.size() == 1,
           "the condition must be a single bool, found ", to_string(condition.dtype()),
           to_string(condition.shape()));
  const char* taken = *condition.data<bool>() ? "then_branch" : "else_branch";
  const Graph& branch = subgraph_of(c.node(), taken);
  c.expect(branch.inputs.empty() && branch.outputs.size() >= c.output_count(), "the graph '", taken,
           "' must have no inputs and ", counted(c.output_count(), "output"), ", found ",
           branch.inputs.size(), " and ", branch.outputs.size());
  Places places(c);
  c.run_body(taken, {}, places, -1);
}

// Writes an If on the same condition. Each branch computes a branch of the node again and then runs it
// backwards:
//
//     dv = condition ? d then / dv : d else / dv        for every v that the branches read, zeros in a
//     branch that does not read v
void gradient(GradientContext& g) {
  SubgraphContext& s = g.subgraphs();
  const std::vector<std::string> captured = s.captured();
  std::vector<std::pair<size_t, std::string>> seeds;
  for (size_t o = 0; o < g.node().outputs.size(); ++o)
    if (!g.dy(o).empty()) seeds.emplace_back(o, g.dy(o));
  Node node = g.node();
  const char* names[] = {"then_branch", "else_branch"};
  SubgraphGradient branches[2];
  for (int b = 0; b < 2; ++b) branches[b] = s.differentiate(names[b], {}, captured, seeds);

  // A value that a branch cannot recompute becomes an output of the node; the other branch returns an empty
  // value there.
  for (int b = 0; b < 2; ++b) {
    for (const ValueInfo& saved : branches[b].saved) {
      const std::string output = s.unique(saved.name);
      node.outputs.push_back(output);
      add_subgraph_output(s, *branches[b].forward, saved.name, saved);
      const Tensor none(saved.dtype, Shape(saved.dims ? saved.dims->size() : 1, 0));
      const std::string nothing =
          saved.is_sequence ? add_node(s, *branches[1 - b].forward, "SequenceEmpty", {},
                                       {{"dtype", static_cast<int64_t>(saved.dtype)}})
                            : add_node(s, *branches[1 - b].forward, "Constant", {}, {{"value", none}});
      add_subgraph_output(s, *branches[1 - b].forward, nothing,
                          ValueInfo{"", saved.dtype, std::nullopt, saved.is_sequence});
      Node identity;
      identity.op_type = "Identity";
      identity.name = s.unique(saved.name + "_saved");
      identity.inputs = {output};
      identity.outputs = {saved.name};
      branches[b].backward->nodes.insert(branches[b].backward->nodes.begin(), identity);
    }
  }
  if (node.outputs.size() > g.node().outputs.size()) {
    for (int b = 0; b < 2; ++b) node.attributes[names[b]] = branches[b].forward;
    s.change(node);
  }

  std::vector<std::string> reached;
  for (size_t k = 0; k < captured.size(); ++k) {
    if (branches[0].gradients[k].empty() && branches[1].gradients[k].empty()) continue;
    reached.push_back(captured[k]);
    const ValueInfo like = s.info(captured[k]);
    for (SubgraphGradient& branch : branches) {
      std::string gradient = branch.gradients[k];
      if (gradient.empty()) gradient = add_zeros(s, *branch.backward, captured[k], like);
      add_subgraph_output(s, *branch.backward, gradient, like);
    }
  }
  if (reached.empty()) return;
  const Names gradients = g.emit("If", {g.x(0)}, reached.size(),
                                 {{names[0], branches[0].backward}, {names[1], branches[1].backward}});
  for (size_t k = 0; k < reached.size(); ++k) s.set_captured(reached[k], gradients[k]);
}

std::string subgraph_fault(const Node& node, int64_t) {
  for (const char* name : {"then_branch", "else_branch"}) {
    const Graph& branch = subgraph_of(node, name);
    if (!branch.inputs.empty() || branch.outputs.size() < node.outputs.size())
      return concat("the graph '", name, "' must have no inputs and ", counted(node.outputs.size(), "output"),
                    ", found ", branch.inputs.size(), " and ", branch.outputs.size());
  }
  return "";
}

ORTRAIN_OPERATOR({.type = "If",
                  .subgraph_fault = subgraph_fault,
                  .rules = {.gradient = gradient, .types = types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
