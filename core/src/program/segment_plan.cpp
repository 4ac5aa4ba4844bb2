#include "program/segment_plan.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "op/dynamic.h"
#include "program/program.h"
#include "program/stated_shape.h"

namespace ortrain {

namespace {

// What is known of a value.
struct Known {
  DType dtype = DType::kUndefined;
  Shape shape;
  const Tensor* constant = nullptr;  // its value, the same in every run
  const Tensor* content = nullptr;   // its value in this run
  bool state = false;
  bool other = false;  // a sequence, or nothing
};

class Planner {
 public:
  explicit Planner(const SegmentRequest& request);
  SegmentPlan plan() {
    visit(*request_.nodes);
    finish();
    return std::move(plan_);
  }

  const Known* find(const std::string& name) const {
    const auto found = known_.find(name);
    return found == known_.end() ? nullptr : &found->second;
  }
  int64_t opset(const std::string& domain) const {
    const auto found = request_.opsets->find(domain);
    return found == request_.opsets->end() ? 1 : found->second;
  }
  std::vector<int64_t> stated_shape(const std::string& name) const { return (*stated_shapes_)(name); }

 private:
  void visit(const std::vector<Node>& nodes);
  void visit(const Node& node);
  void wait(const Node& node, std::vector<Node>& list);
  bool must_wait(const Node& node, const std::vector<std::string>& read);
  // Whether the node can be run behind the dynamic nodes whose results it reads.
  bool follows(const Operator& op, const std::vector<std::string>& read) const;
  // Makes the value a constant whose contents belong to the key; false where they are not known yet.
  bool pin(const std::string& name);
  void add_constant(const std::string& name, Tensor value);
  // Replaces a node whose condition is known by the nodes of that branch.
  bool splice(const Node& node);
  // Makes the outputs constants; false where they are no tensors.
  bool run_now(const Node& node, const Operator& op);
  void fold(const Node& node, const std::vector<std::pair<DType, Shape>>& results, std::vector<Tensor> known);
  void finish();

  const SegmentRequest& request_;
  SegmentPlan plan_;
  std::unordered_map<std::string, Known> known_;
  std::optional<StatedShapes> stated_shapes_;
  std::unordered_set<std::string> computed_;  // by nodes of the Program
  std::unordered_set<std::string> found_;     // by dynamic nodes
  // States that waiting nodes read or update: nodes behind them must leave these alone.
  std::unordered_set<std::string> read_later_, updated_later_;
};

// What a shape rule sees.
class PlannedShapes : public ShapeContext {
 public:
  PlannedShapes(const Planner& planner, const Node& node)
      : ShapeContext(node, planner.opset(node.domain)),
        results(node.outputs.size()),
        known(node.outputs.size()),
        planner_(planner) {}

  DType dtype(size_t i) const override { return input(i).dtype; }
  const Shape& shape(size_t i) const override { return input(i).shape; }
  const Tensor* constant(size_t i) const override { return input(i).constant; }
  void output(size_t o, DType dtype, Shape shape) override {
    if (o >= results.size()) return;
    element_count(shape);  // refuses negative extents and overflow
    results[o] = {dtype, std::move(shape)};
  }
  void value(size_t o, Tensor value) override {
    output(o, value.dtype(), value.shape());
    if (o < results.size()) known[o] = std::move(value);
  }
  std::vector<int64_t> stated_shape(size_t o) const override {
    return o < results.size() ? planner_.stated_shape(node().outputs[o]) : std::vector<int64_t>();
  }

  std::vector<std::pair<DType, Shape>> results;
  std::vector<Tensor> known;  // outputs whose value the shape rule stated

 private:
  const Known& input(size_t i) const {
    expect(has_input(i), "input ", i, " is required but missing");
    return *planner_.find(node().inputs[i]);
  }
  const Planner& planner_;
};

// The run of a dynamic node all of whose inputs are constants.
class ConstantRun : public DynamicContext {
 public:
  ConstantRun(const Planner& planner, const Node& node)
      : DynamicContext(node, planner.opset(node.domain)), results(node.outputs.size()), planner_(planner) {}

  ValueRef value(size_t i) const override {
    expect(has_input(i), "input ", i, " is required but missing");
    return planner_.find(node().inputs[i])->constant;
  }
  const Tensor& out(size_t o, DType dtype, const Shape& shape) override {
    return results.at(o) = Tensor(dtype, shape);
  }
  void set(size_t o, const ValueRef& value) override {
    if (const Tensor* tensor = value.tensor())
      results.at(o) = tensor->clone();
    else
      tensors = false;
  }
  TensorBuffer& buffer(size_t k) override {
    if (buffers_.size() <= k) buffers_.resize(k + 1);
    return buffers_[k];
  }
  void run_body(const std::string&, std::span<const ValueRef>, OutputPlaces&, int64_t) override {
    reject("its subgraphs cannot be run beforehand");
  }
  std::vector<ValueInfo> body_types(const std::string&, const std::vector<ValueInfo>&) override {
    reject("its subgraphs cannot be run beforehand");
  }

  std::vector<Tensor> results;
  bool tensors = true;  // and nothing else

 private:
  const Planner& planner_;
  std::deque<TensorBuffer> buffers_;
};

bool has_subgraph(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
  });
}

bool updates_state(const Node& node) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (op && op->updates != 0) return true;
  for (const auto& [name, attribute] : node.attributes)
    if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute))
      if (std::any_of((*graph)->nodes.begin(), (*graph)->nodes.end(), updates_state)) return true;
  return false;
}

// Calls f(name, is it updated) with every state that the node reads or updates.
template <typename F>
void for_each_state(const Node& node, const std::vector<std::string>& read, const Tensors& states, F&& f) {
  const Operator* op = find_operator(node.domain, node.op_type);
  const bool inner = has_subgraph(node) && updates_state(node);
  for (const std::string& name : read)
    if (states.count(name)) f(name, inner);
  if (!op || op->updates == 0) return;
  for (size_t i = 0; i < node.inputs.size() && i < 32; ++i)
    if ((op->updates >> i & 1) && node.has_input(i) && states.count(node.inputs[i])) f(node.inputs[i], true);
}

Planner::Planner(const SegmentRequest& request) : request_(request) {
  plan_.constants = request.constants;
  plan_.shapes = request.shapes;
  for (const auto& [name, tensor] : request.graph->initializers)
    known_[name] = {tensor.dtype(), tensor.shape(), &tensor, &tensor, false};
  for (const auto& [name, tensor] : *request.states)
    known_[name] = {tensor.dtype(), tensor.shape(), nullptr, &tensor, true};
  for (const auto& [name, tensor] : plan_.constants)
    known_[name] = {tensor.dtype(), tensor.shape(), &tensor, &tensor, false};
  for (const auto& [name, tensor] : request.values)
    known_[name] = {tensor.dtype(), tensor.shape(), nullptr, &tensor, false};
  for (const auto& [name, value] : known_) plan_.shapes[name] = value.shape;
  for (const std::string& name : request.others) known_[name].other = true;
  stated_shapes_.emplace(*request.graph, [this](const std::string& name) -> const Shape* {
    const auto found = plan_.shapes.find(name);
    return found == plan_.shapes.end() ? nullptr : &found->second;
  });
}

bool Planner::pin(const std::string& name) {
  Known& value = known_.at(name);
  if (value.constant) return true;
  if (!value.content) return false;
  add_constant(name, value.content->clone());
  plan_.shape_deciders.push_back(name);
  return true;
}

void Planner::add_constant(const std::string& name, Tensor value) {
  const Tensor& kept = plan_.constants[name] = std::move(value);
  known_[name] = {kept.dtype(), kept.shape(), &kept, &kept, false};
  plan_.shapes[name] = kept.shape();
}

void Planner::wait(const Node& node, std::vector<Node>& list) {
  list.push_back(node);
  if (&list == &plan_.dynamic) found_.insert(node.outputs.begin(), node.outputs.end());
  for_each_state(node, values_read(node), *request_.states, [&](const std::string& state, bool updated) {
    read_later_.insert(state);
    if (updated) updated_later_.insert(state);
  });
}

bool Planner::follows(const Operator& op, const std::vector<std::string>& read) const {
  if (!op.run || op.shape || !request_.later.empty()) return false;
  return std::all_of(read.begin(), read.end(), [&](const std::string& name) {
    return (find(name) || found_.count(name)) && !request_.states->count(name);
  });
}

bool Planner::must_wait(const Node& node, const std::vector<std::string>& read) {
  if (!request_.later.empty() && !node.outputs.empty() && request_.later.count(node.outputs[0])) return true;
  for (const std::string& name : read) {
    if (!find(name)) return true;
    if (request_.wanted.count(name) && !pin(name)) return true;
  }
  bool order = false;
  for_each_state(node, read, *request_.states, [&](const std::string& state, bool updated) {
    order |= updated_later_.count(state) > 0 || (updated && read_later_.count(state) > 0);
  });
  return order;
}

void Planner::visit(const std::vector<Node>& nodes) {
  for (const Node& node : nodes) visit(node);
}

void Planner::visit(const Node& node) {
  const Operator* op = find_operator(node.domain, node.op_type);
  require(op != nullptr, ErrorCode::kNotImplemented, node.label(), ": the operator is not known");
  const std::vector<std::string> read = values_read(node);
  if (must_wait(node, read)) {
    const bool next = follows(*op, read);
    return wait(node, next ? plan_.dynamic : plan_.rest);
  }
  if (splice(node)) return;
  const bool constant =
      !op->impure && !has_subgraph(node) &&
      std::all_of(read.begin(), read.end(), [&](const std::string& name) { return find(name)->constant; });
  const bool others =
      std::any_of(read.begin(), read.end(), [&](const std::string& name) { return find(name)->other; });
  const bool takes_others = std::any_of(node.inputs.begin(), node.inputs.end(), [&](const std::string& name) {
    return !name.empty() && find(name)->other;
  });
  require(op->takes_sequences || !takes_others, ErrorCode::kNotImplemented, node.label(),
          ": one of its inputs is a sequence or an optional value; this operator takes tensors alone");
  if (op->run && (others || !op->shape)) {
    if (!constant || !run_now(node, *op)) wait(node, plan_.dynamic);
    return;
  }

  PlannedShapes shapes(*this, node);
  while (true) {
    try {
      op->shape(shapes);
      break;
    } catch (const DataDependent& e) {
      if (!pin(e.value)) return wait(node, plan_.rest);
    }
  }
  // Pinning may have made the last input a constant.
  const bool folds = !op->impure && std::all_of(read.begin(), read.end(), [&](const std::string& name) {
    return find(name)->constant;
  });
  bool all_known = true;
  for (size_t o = 0; o < node.outputs.size(); ++o)
    all_known &= !node.has_output(o) || shapes.known[o].defined();
  if (folds || all_known) return fold(node, shapes.results, std::move(shapes.known));
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!node.has_output(o) || shapes.results[o].first == DType::kUndefined) continue;
    const std::string& name = node.outputs[o];
    known_[name] = {shapes.results[o].first, shapes.results[o].second, nullptr, nullptr, false};
    plan_.shapes[name] = shapes.results[o].second;
    computed_.insert(name);
  }
  plan_.nodes.push_back(node);
}

bool Planner::splice(const Node& node) {
  if (node.op_type != "If" || !node.domain.empty() || !node.has_input(0)) return false;
  const Tensor* condition = find(node.inputs[0])->constant;
  if (!condition || condition->dtype() != DType::kBool || condition->size() != 1) return false;
  const char* taken = *condition->data<bool>() ? "then_branch" : "else_branch";
  const auto attribute = node.attributes.find(taken);
  if (attribute == node.attributes.end()) return false;
  const auto* branch = std::get_if<std::shared_ptr<Graph>>(&attribute->second);
  if (!branch || !*branch || (*branch)->outputs.size() < node.outputs.size()) return false;
  for (const auto& [name, value] : (*branch)->initializers) add_constant(name, value);
  visit((*branch)->nodes);
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!node.has_output(o)) continue;
    Node identity;
    identity.op_type = "Identity";
    identity.name = node.name;
    identity.inputs = {(*branch)->outputs[o].name};
    identity.outputs = {node.outputs[o]};
    visit(identity);
  }
  return true;
}

bool Planner::run_now(const Node& node, const Operator& op) {
  ConstantRun run(*this, node);
  op.run(run);
  if (!run.tensors) return false;
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.has_output(o)) add_constant(node.outputs[o], run.results[o]);
  return true;
}

void Planner::fold(const Node& node, const std::vector<std::pair<DType, Shape>>& results,
                   std::vector<Tensor> known) {
  std::vector<size_t> wanted;
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.has_output(o) && !known[o].defined() && results[o].first != DType::kUndefined)
      wanted.push_back(o);
  if (!wanted.empty()) {
    Graph graph;
    graph.nodes = {node};
    ProgramRequest request;
    request.graph = &graph;
    request.opsets = request_.opsets;
    for (const std::string& name : values_read(node)) request.constants[name] = *find(name)->constant;
    request.shapes = plan_.shapes;
    std::vector<const Tensor*> places;
    for (const size_t o : wanted) {
      request.outputs.push_back(node.outputs[o]);
      known[o] = Tensor(results[o].first, results[o].second);
      places.push_back(&known[o]);
    }
    Program(request).run({}, places, 0);
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.has_output(o) && known[o].defined()) add_constant(node.outputs[o], std::move(known[o]));
}

void Planner::finish() {
  std::unordered_set<std::string> read;
  for (const Node& node : plan_.nodes)
    for (std::string& name : values_read(node)) read.insert(std::move(name));
  std::unordered_set<std::string> later;
  for (const std::vector<Node>* nodes : {&plan_.dynamic, &plan_.rest})
    for (const Node& node : *nodes)
      for (const std::string& name : values_read(node))
        if (computed_.count(name) && later.insert(name).second) plan_.outputs.push_back(name);
  for (const std::string& name : request_.outputs) {
    if (!find(name) || find(name)->other) continue;
    plan_.made.push_back(name);
    read.insert(name);
  }
  for (const auto& [name, tensor] : request_.values)
    if (read.count(name) && !plan_.constants.count(name)) plan_.inputs.push_back(name);
  std::sort(plan_.inputs.begin(), plan_.inputs.end());
}

}  // namespace

std::unordered_set<std::string> unchanged_nodes(const SegmentPlan& plan, const SegmentPlan& other,
                                                const Tensors& states) {
  const auto same_shape = [&](const std::string& name) {
    const auto a = plan.shapes.find(name), b = other.shapes.find(name);
    return a == plan.shapes.end() ? b == other.shapes.end()
                                  : b != other.shapes.end() && a->second == b->second;
  };
  const auto same_constant = [&](const std::string& name) {
    const auto a = plan.constants.find(name), b = other.constants.find(name);
    if (a == plan.constants.end() || b == other.constants.end())
      return a == plan.constants.end() && b == other.constants.end();
    const Tensor &x = a->second, &y = b->second;
    return x.dtype() == y.dtype() && x.bytes() == y.bytes() &&
           (x.raw() == y.raw() || std::memcmp(x.raw(), y.raw(), x.bytes()) == 0);
  };
  const auto same = [&](const std::string& name) {
    return name.empty() || (same_shape(name) && same_constant(name));
  };
  std::unordered_set<std::string> unchanged, needed;          // what nodes that stay read
  std::unordered_set<std::string> read_after, updated_after;  // states, by nodes that stay
  for (size_t n = plan.nodes.size(); n-- > 0;) {
    const Node& node = plan.nodes[n];
    const std::vector<std::string> read = values_read(node);
    const auto is_needed = [&](const std::string& name) { return needed.count(name) > 0; };
    bool leaves = node.has_output(0) && std::all_of(read.begin(), read.end(), same) &&
                  std::all_of(node.outputs.begin(), node.outputs.end(), same) &&
                  std::none_of(node.outputs.begin(), node.outputs.end(), is_needed);
    // Nor may it come behind a node that reads or updates the same state.
    for_each_state(node, read, states, [&](const std::string& state, bool updated) {
      leaves &= !updated_after.count(state) && !(updated && read_after.count(state));
    });
    if (leaves) {
      unchanged.insert(node.outputs[0]);
      continue;
    }
    needed.insert(read.begin(), read.end());
    for_each_state(node, read, states, [&](const std::string& state, bool updated) {
      read_after.insert(state);
      if (updated) updated_after.insert(state);
    });
  }
  return unchanged;
}

SegmentPlan plan_segment(const SegmentRequest& request) { return Planner(request).plan(); }

}  // namespace ortrain
