#include "program/segment_plan.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "op/dynamic.h"
#include "op/left_out.h"
#include "program/program.h"
#include "program/stated_shape.h"

namespace ortrain {

namespace {

class Planner {
 public:
  explicit Planner(const SegmentRequest& request);
  SegmentPlan plan() {
    const std::vector<const PlanNode*>& nodes =
        request_.before ? request_.before->rest : request_.graph->nodes();
    for (const PlanNode* node : nodes) visit(*node);
    finish();
    return std::move(plan_);
  }

  const KnownValue* find(int value) const { return plan_.find(value); }
  const KnownValue* find(const std::string& name) const { return plan_.find(request_.graph->find(name)); }
  const PlanGraph& graph() const { return *request_.graph; }
  const ProgramLimits& limits() const { return request_.limits; }
  std::vector<int64_t> stated_shape(const std::string& name) const { return (*stated_shapes_)(name); }

 private:
  using Kind = KnownValue::Kind;
  // The facts that the planner records about a value.
  enum Mark : uint8_t {
    kComputed = 1,  // by a node of the Program
    kFound = 2,     // by a dynamic node
    // State that a waiting node reads or updates: later nodes must not touch it.
    kReadLater = 4,
    kUpdatedLater = 8,
    kListed = 16
  };

  void visit(const PlanNode& node);
  void wait(const PlanNode& node, std::vector<const PlanNode*>& list);
  bool must_wait(const PlanNode& node);
  // Whether the node can run after the dynamic nodes whose results it reads.
  bool follows(const PlanNode& node) const;
  // Makes the value a constant whose contents are part of the key; false if they are not known yet.
  bool pin(int value);
  void know(int value, KnownValue known);
  void add_constant(int value, Tensor tensor, bool of_variant = false) {
    const DType dtype = tensor.dtype();
    Shape shape = tensor.shape();
    know(value, {Kind::kConstant, dtype, std::move(shape), std::move(tensor), of_variant});
  }
  // Replaces a node whose condition is known with the nodes of the branch that it takes.
  bool splice(const PlanNode& node);
  // Makes the outputs constants; false if they are not tensors.
  bool run_now(const PlanNode& node);
  void fold(const PlanNode& node, const std::vector<std::pair<DType, Shape>>& results,
            std::vector<Tensor> known);
  void finish();
  const Shape* shape_of(const std::string& name) const {
    const KnownValue* known = find(name);
    return known && known->kind != Kind::kOther ? &known->shape : nullptr;
  }
  bool marked(int value, unsigned marks) const {
    return static_cast<size_t>(value) < marks_.size() && (marks_[static_cast<size_t>(value)] & marks) != 0;
  }
  void mark(int value, unsigned marks) {
    const auto at = static_cast<size_t>(value);
    if (at >= marks_.size()) marks_.resize(std::max(at + 1, graph().value_count()));
    marks_[at] = static_cast<uint8_t>(marks_[at] | marks);
  }
  bool all_constant(const std::vector<int>& values) const {
    return std::all_of(values.begin(), values.end(),
                       [&](int value) { return find(value)->kind == Kind::kConstant; });
  }

  const SegmentRequest& request_;
  SegmentPlan plan_;
  std::vector<uint8_t> marks_;                       // by the numbers of values
  std::unordered_map<int, const Tensor*> contents_;  // of the given values, in this run
  std::optional<StatedShapes> stated_shapes_;
};

// The node and inputs that a shape rule sees.
class PlannedShapes : public ShapeContext {
 public:
  PlannedShapes(const Planner& planner, const PlanNode& node)
      : ShapeContext(*node.node, planner.graph().opset(node.node->domain)),
        results(node.outputs.size()),
        known(node.outputs.size()),
        planner_(planner),
        plan_node_(node) {}

  DType dtype(size_t i) const override { return input(i).dtype; }
  const Shape& shape(size_t i) const override { return input(i).shape; }
  const Tensor* constant(size_t i) const override {
    const KnownValue& value = input(i);
    return value.kind == KnownValue::Kind::kConstant ? &value.constant : nullptr;
  }
  void output(size_t o, DType dtype, Shape shape) override {
    if (o >= results.size()) return;
    check_value(*this, o, dtype, shape, planner_.limits());
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
  const KnownValue& input(size_t i) const {
    expect(has_input(i), "input ", i, " is required but missing");
    return *planner_.find(plan_node_.inputs[i]);
  }
  const Planner& planner_;
  const PlanNode& plan_node_;
};

// The run of a dynamic node all of whose inputs are constants.
class ConstantRun : public DynamicContext {
 public:
  ConstantRun(const Planner& planner, const PlanNode& node)
      : DynamicContext(*node.node, planner.graph().opset(node.node->domain)),
        results(node.outputs.size()),
        planner_(planner),
        plan_node_(node) {}

  ValueRef value(size_t i) const override {
    expect(has_input(i), "input ", i, " is required but missing");
    return planner_.find(plan_node_.inputs[i])->constant;
  }
  void check_limits(size_t o, DType dtype, const Shape& shape) const override {
    check_value(*this, o, dtype, shape, planner_.limits());
  }
  const Tensor& out(size_t o, DType dtype, const Shape& shape) override {
    check_limits(o, dtype, shape);
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
    reject("its subgraphs cannot be run in advance");
  }
  std::vector<ValueInfo> body_types(const std::string&, const std::vector<ValueInfo>&) override {
    reject("its subgraphs cannot be run in advance");
  }

  std::vector<Tensor> results;
  bool tensors = true;  // whether all results are tensors

 private:
  const Planner& planner_;
  const PlanNode& plan_node_;
  std::deque<TensorBuffer> buffers_;
};

Planner::Planner(const SegmentRequest& request) : request_(request) {
  PlanGraph& graph = *request.graph;
  plan_.own = std::make_shared<std::deque<KnownValue>>();
  if (request.before) {
    plan_.known = request.before->known;
  } else {
    for (const auto& [name, tensor] : graph.graph().initializers) add_constant(graph.number(name), tensor);
    for (const auto& [name, tensor] : *request.states)
      know(graph.number(name), {Kind::kState, tensor.dtype(), tensor.shape()});
    for (const auto& [name, tensor] : *request.fixed) add_constant(graph.number(name), tensor);
  }
  // A plan for every variant contains the constants of a single variant, which are replaced here.
  for (const auto& [name, tensor] : *request.of_variant) add_constant(graph.number(name), tensor, true);
  for (const auto& [value, given] : request.values) {
    const KnownValue* known = find(value);
    if (known && known->kind == Kind::kConstant) continue;
    if (const Tensor* tensor = given.tensor()) {
      know(value, {Kind::kTensor, tensor->dtype(), tensor->shape()});
      contents_.emplace(value, tensor);
    } else {
      know(value, {Kind::kOther, DType::kUndefined, {}});
    }
  }
  stated_shapes_.emplace(graph.graph(), [this](const std::string& name) { return shape_of(name); });
}

void Planner::know(int value, KnownValue known) {
  const auto at = static_cast<size_t>(value);
  if (at >= plan_.known.size()) plan_.known.resize(std::max(at + 1, graph().value_count()));
  plan_.known[at] = &plan_.own->emplace_back(std::move(known));
}

bool Planner::pin(int value) {
  const Kind kind = find(value)->kind;
  if (kind == Kind::kConstant) return true;
  const auto given = contents_.find(value);
  if (kind != Kind::kState && given == contents_.end()) return false;
  add_constant(value, kind == Kind::kState ? request_.states->at(graph().name(value)).clone()
                                           : given->second->clone());
  plan_.shape_deciders.push_back(value);
  return true;
}

void Planner::wait(const PlanNode& node, std::vector<const PlanNode*>& list) {
  list.push_back(&node);
  if (&list == &plan_.dynamic)
    for (const int value : node.outputs)
      if (value >= 0) mark(value, kFound);
  for (const auto& [state, updated] : node.states)
    mark(state, updated ? kReadLater | kUpdatedLater : kReadLater);
}

bool Planner::follows(const PlanNode& node) const {
  if (!node.op->kernels.run || node.op->rules.shape || !request_.later.empty()) return false;
  return std::all_of(node.read.begin(), node.read.end(), [&](int value) {
    return (find(value) || marked(value, kFound)) && !graph().is_state(value);
  });
}

bool Planner::must_wait(const PlanNode& node) {
  if (!request_.later.empty() && !node.outputs.empty() && request_.later.count(node.outputs[0])) return true;
  for (const int value : node.read) {
    if (!find(value)) return true;
    if (!request_.wanted.empty() && request_.wanted.count(value) && !pin(value)) return true;
  }
  return std::any_of(node.states.begin(), node.states.end(), [&](const auto& state) {
    return marked(state.first, state.second ? kReadLater | kUpdatedLater : kUpdatedLater);
  });
}

void Planner::visit(const PlanNode& node) {
  const Operator* op = node.op;
  require(op != nullptr, ErrorCode::kNotImplemented, node.node->label(), ": this operator is not supported",
          left_out_hint());
  const bool waits = must_wait(node), next = waits && follows(node);
  if (waits && !next) return wait(node, plan_.rest);
  for (const int value : node.read)
    if (const KnownValue* known = find(value)) plan_.of_variant |= known->of_variant;
  if (next) return wait(node, plan_.dynamic);
  if (splice(node)) return;
  const auto is_other = [&](int value) { return value >= 0 && find(value)->kind == Kind::kOther; };
  const bool others = std::any_of(node.read.begin(), node.read.end(), is_other);
  require(
      op->traits.takes_sequences || !others || std::none_of(node.inputs.begin(), node.inputs.end(), is_other),
      ErrorCode::kNotImplemented, node.node->label(),
      ": one of its inputs is a sequence or an optional value; this operator only accepts tensors");
  if (op->kernels.run && (others || !op->rules.shape)) {
    const bool constant = !op->traits.impure && !node.has_subgraph && all_constant(node.read);
    if (!constant || !run_now(node)) wait(node, plan_.dynamic);
    return;
  }

  PlannedShapes shapes(*this, node);
  while (true) {
    try {
      infer_shapes(*op, shapes);
      break;
    } catch (const DataDependent& e) {
      if (!pin(request_.graph->number(e.value))) return wait(node, plan_.rest);
    }
  }
  bool all_known = true;
  for (size_t o = 0; o < node.outputs.size(); ++o)
    all_known &= node.outputs[o] < 0 || shapes.known[o].defined();
  // Pinning may have turned the last input into a constant.
  if (all_known || (!op->traits.impure && all_constant(node.read)))
    return fold(node, shapes.results, std::move(shapes.known));
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (node.outputs[o] < 0 || shapes.results[o].first == DType::kUndefined) continue;
    know(node.outputs[o], {Kind::kTensor, shapes.results[o].first, std::move(shapes.results[o].second)});
    mark(node.outputs[o], kComputed);
  }
  plan_.nodes.push_back(&node);
}

bool Planner::splice(const PlanNode& planned) {
  const Node& node = *planned.node;
  if (node.op_type != "If" || !node.domain.empty() || !node.has_input(0)) return false;
  const Tensor* condition = plan_.constant(planned.inputs[0]);
  if (!condition || condition->dtype() != DType::kBool || condition->size() != 1) return false;
  const char* taken = *condition->data<bool>() ? "then_branch" : "else_branch";
  const auto attribute = node.attributes.find(taken);
  if (attribute == node.attributes.end()) return false;
  const auto* branch = std::get_if<std::shared_ptr<Graph>>(&attribute->second);
  if (!branch || !*branch || (*branch)->outputs.size() < node.outputs.size()) return false;
  for (const auto& [name, value] : (*branch)->initializers) add_constant(request_.graph->number(name), value);
  for (const Node& inner : (*branch)->nodes) visit(request_.graph->node(inner));
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.has_output(o))
      visit(request_.graph->identity((*branch)->outputs[o].name, node.outputs[o], node));
  return true;
}

bool Planner::run_now(const PlanNode& node) {
  ConstantRun run(*this, node);
  node.op->kernels.run(run);
  if (!run.tensors) return false;
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.outputs[o] >= 0)
      add_constant(node.outputs[o],
                   run.results[o].dtype() == DType::kString ? run.results[o].clone() : run.results[o]);
  return true;
}

void Planner::fold(const PlanNode& node, const std::vector<std::pair<DType, Shape>>& results,
                   std::vector<Tensor> known) {
  std::vector<size_t> wanted;
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.outputs[o] >= 0 && !known[o].defined() && results[o].first != DType::kUndefined)
      wanted.push_back(o);
  if (!wanted.empty()) {
    const Graph graph;
    const std::vector<Node> nodes = {*node.node};
    ProgramRequest request;
    request.graph = &graph;
    request.nodes = &nodes;
    request.opsets = &request_.graph->opsets();
    request.limits = request_.limits;
    for (const int value : node.read) request.constants[this->graph().name(value)] = find(value)->constant;
    request.shape_of = [this](const std::string& name) { return shape_of(name); };
    std::vector<const Tensor*> places;
    for (const size_t o : wanted) {
      request.outputs.push_back(node.node->outputs[o]);
      known[o] = Tensor(results[o].first, results[o].second);
      places.push_back(&known[o]);
    }
    Program(request).run({}, places, 0);
    for (const size_t o : wanted)
      if (known[o].dtype() == DType::kString) known[o] = known[o].clone();  // texts end with the run
  }
  for (size_t o = 0; o < node.outputs.size(); ++o)
    if (node.outputs[o] >= 0 && known[o].defined()) add_constant(node.outputs[o], std::move(known[o]));
}

void Planner::finish() {
  for (const std::vector<const PlanNode*>* nodes : {&plan_.dynamic, &plan_.rest})
    for (const PlanNode* node : *nodes)
      for (const int value : node->read)
        if (marked(value, kComputed) && !marked(value, kListed)) {
          mark(value, kListed);
          plan_.outputs.push_back(value);
        }
  const auto take = [&](int value) {
    if (find(value)->kind != Kind::kTensor || marked(value, kComputed | kListed)) return;
    mark(value, kListed);
    plan_.inputs.push_back(value);
  };
  for (const PlanNode* node : plan_.nodes) std::for_each(node->read.begin(), node->read.end(), take);
  for (const int value : request_.outputs) {
    const KnownValue* known = find(value);
    if (!known || known->kind == Kind::kOther) continue;
    plan_.of_variant |= known->of_variant;
    plan_.made.push_back(value);
    take(value);
  }
}

}  // namespace

namespace {

// Whether a value has the same type and shape in both plans and, if it is constant, the same value.
bool same_value(const SegmentPlan& plan, const SegmentPlan& other, int value) {
  if (value < 0) return true;
  const KnownValue *a = plan.find(value), *b = other.find(value);
  if (!a || !b) return a == b;
  if (a->dtype != b->dtype || a->shape != b->shape) return false;
  const Tensor *x = plan.constant(value), *y = other.constant(value);
  if (!x || !y) return x == y;
  return x->dtype() == y->dtype() && x->bytes() == y->bytes() &&
         (x->raw() == y->raw() || std::memcmp(x->raw(), y->raw(), x->bytes()) == 0);
}

}  // namespace

bool same_rest(const SegmentPlan& plan, const SegmentPlan& other) {
  return plan.rest == other.rest && plan.outputs == other.outputs &&
         std::all_of(plan.rest.begin(), plan.rest.end(), [&](const PlanNode* node) {
           return std::all_of(node->read.begin(), node->read.end(),
                              [&](int value) { return same_value(plan, other, value); });
         });
}

std::unordered_set<int> unchanged_nodes(const SegmentPlan& plan, const SegmentPlan& other) {
  const auto same = [&](int value) { return same_value(plan, other, value); };
  std::unordered_set<int> unchanged, needed;          // values that the remaining nodes read
  std::unordered_set<int> read_after, updated_after;  // states, by the remaining nodes
  for (size_t n = plan.nodes.size(); n-- > 0;) {
    const PlanNode& node = *plan.nodes[n];
    bool leaves = !node.outputs.empty() && node.outputs[0] >= 0 &&
                  std::all_of(node.read.begin(), node.read.end(), same) &&
                  std::all_of(node.outputs.begin(), node.outputs.end(), same) &&
                  std::none_of(node.outputs.begin(), node.outputs.end(),
                               [&](int value) { return needed.count(value) > 0; });
    // The node must not move behind a node that reads or updates the same state.
    for (const auto& [state, updated] : node.states)
      leaves &= !updated_after.count(state) && !(updated && read_after.count(state));
    if (leaves) {
      unchanged.insert(node.outputs[0]);
      continue;
    }
    needed.insert(node.read.begin(), node.read.end());
    for (const auto& [state, updated] : node.states) {
      read_after.insert(state);
      if (updated) updated_after.insert(state);
    }
  }
  return unchanged;
}

SegmentPlan plan_segment(const SegmentRequest& request) { return Planner(request).plan(); }

}  // namespace ortrain
