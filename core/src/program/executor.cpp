#include "program/executor.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <unordered_set>

#include "infer/value_types.h"
#include "program/segment_plan.h"
#include "runtime/stop.h"

namespace ortrain {

namespace {

// The capacities of the caches of segments: by the shapes of a graph's inputs, by the shapes of the results
// of a segment, and by the shapes of a subgraph's inputs. The least recently used segment is evicted.
constexpr size_t kPrograms = 8, kSuccessors = 64, kOfSubgraphs = 256;
// The number of shareable nodes from which a separate Program pays off, and the most tails after a segment.
constexpr size_t kWorthSharing = 8, kTails = 8;
constexpr size_t kNoOutput = SIZE_MAX;

// A value passed between segments, or given from outside.
struct Cell {
  ValueRef value;       // in the current run
  TensorBuffer buffer;  // its memory, if it is produced here
  Tensor view;          // the value itself, if the memory is owned elsewhere
  Sequence sequence;    // its elements, if it is a sequence produced here
};

// Where a node that runs between Programs finds an input.
struct Source {
  const Cell* cell = nullptr;
  Tensor fixed;  // a constant or a state
  const Tensor& tensor() const { return cell ? *cell->value.tensor() : fixed; }
  ValueRef value() const { return cell ? cell->value : fixed; }
};

// The kind of value for which a segment is compiled: a tensor of a type and shape, a sequence, or nothing.
// Neither a Program nor the plan depends on the contents of a sequence.
struct Form {
  enum Kind { kTensor, kSequence, kNothing } kind;
  DType dtype = DType::kUndefined;
  Shape shape;

  explicit Form(const ValueRef& value)
      : kind(value.tensor()     ? kTensor
             : value.sequence() ? kSequence
                                : kNothing) {
    if (!value.tensor()) return;
    dtype = value.tensor()->dtype();
    shape = value.tensor()->shape();
  }
  bool fits(const ValueRef& value) const {
    if (const Tensor* tensor = value.tensor())
      return kind == kTensor && tensor->dtype() == dtype && tensor->shape() == shape;
    return kind == (value.sequence() ? kSequence : kNothing);
  }
};

struct Target {
  Cell* cell = nullptr;
  size_t output = 0;  // of the graph, if there is no cell
};

struct DynamicStep;
struct Segment;
using Segments = std::list<std::shared_ptr<Segment>>;

// The part at the end of a segment's rest whose shapes do not depend on the results of the dynamic nodes. It
// is compiled once, as the successor of every segment that was split before it.
struct Tail {
  std::unordered_set<int> nodes;
  struct Compiled;
  std::map<int, Compiled> compiled;  // of each variant
};

struct Segment {
  // The values for which it was compiled. No variant: it reads none of the constants that differ between
  // variants.
  std::optional<int> variant;
  std::vector<Form> forms;                          // of the values that its cache compares
  std::vector<std::pair<Source, Tensor>> contents;  // and the contents of some values

  std::unique_ptr<Program> program;  // null if there is nothing to compute
  std::vector<Source> inputs;        // of the program
  std::vector<Target> targets;       // its outputs
  std::vector<DynamicStep> dynamic;
  std::vector<std::pair<const Cell*, size_t>> passed;  // sequences that are graph outputs unchanged

  bool last = false;
  SegmentPlan plan;                                // values known at its end, and nodes that remain
  std::vector<int> outputs;                        // of the graph, not produced yet
  std::vector<std::pair<int, const Cell*>> known;  // values in cells that are read later
  std::vector<const Cell*> results;                // of the dynamic nodes: their types select the successor
  Segments next;
  std::map<int, SegmentPlan> references;  // by variant: plan of the first successor, if it was last
  std::list<Tail> tails;                  // shared by the successors
  Tail* tail = nullptr;                   // the tail that was split off from this segment
};

struct Tail::Compiled {
  std::shared_ptr<Segment> segment;
  SegmentPlan before;  // the plan after which the segment was compiled
};

struct Body {
  Executor* executor = nullptr;
  std::vector<Source> captured;                        // inputs after those of the subgraph
  std::vector<std::pair<std::string, Source>> around;  // all values that it reads from the enclosing graphs
};

struct DynamicStep {
  Node node;
  const Operator* op = nullptr;
  std::vector<Source> inputs;
  std::vector<Cell*> outputs;
  std::vector<size_t> graph_outputs;  // which of the graph's outputs they are; kNoOutput for none
  std::map<std::string, Body> bodies;
  std::deque<TensorBuffer> buffers;
};

bool holds(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

// A run number for each run of a subgraph within a run.
uint64_t inner_run(uint64_t run, int64_t iteration) {
  if (iteration < 0) return run;
  uint64_t z = run + 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(iteration) + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

struct Executor::Impl {
  Impl(const Graph& g, std::vector<std::string> in, std::vector<std::string> out, ExecutorSettings s,
       Tensors c)
      : graph(g),
        inputs(std::move(in)),
        outputs(std::move(out)),
        settings(std::move(s)),
        constants(std::move(c)) {
    for (const std::string& name : inputs) input_cells.push_back(&cell(name));
    for (const Node& node : graph.nodes) {
      const Operator* op = find_operator(node.domain, node.op_type);
      whole = whole && !(op && op->kernels.run && !op->rules.shape);
      for (std::string& name : values_read(node)) read.insert(std::move(name));
    }
    read.insert(outputs.begin(), outputs.end());
    for (size_t o = 0; o < outputs.size(); ++o)
      if (const auto [first_of_name, fresh] = output_indices.emplace(outputs[o], o); !fresh)
        doubled.emplace_back(first_of_name->second, o);
    places_of_outputs.resize(outputs.size());
  }

  const Graph& graph;
  std::vector<std::string> inputs, outputs;
  ExecutorSettings settings;
  Tensors constants;
  std::unordered_map<std::string, Cell> cells;
  std::vector<Cell*> input_cells;
  bool whole = true;                               // whether one Program runs the graph, as far as is known
  std::unordered_set<std::string> read;            // values that nodes or outputs read
  std::vector<std::pair<size_t, size_t>> doubled;  // outputs that repeat other outputs
  std::unordered_map<std::string, size_t> output_indices;  // of the first output with a name
  std::vector<ValueRef> places_of_outputs;                 // in the current run
  std::optional<PlanGraph> plan_graph;                     // present if several Programs run the graph
  Segments first;
  std::map<const Graph*, std::unique_ptr<Executor>> bodies;  // of the nodes' subgraphs
  size_t capacity = kPrograms;
  size_t compiled = 0;
  std::vector<const Tensor*> program_inputs;  // kept, so that a run allocates nothing
  std::vector<const Tensor*> program_outputs;

  Cell& cell(const std::string& name) { return cells[name]; }

  void run(std::span<const ValueRef> given, OutputPlaces& places, const RunScope& scope);
  void check_given(std::span<const ValueRef> given, const RunScope& scope) const;
  Segment* find(Segments& list, std::span<const Cell* const> values, int variant);
  Segment& add(Segments& list, size_t most, std::span<const Cell* const> values,
               std::shared_ptr<Segment> segment);
  std::shared_ptr<Segment> compile(Segment* before, const RunScope& scope);
  SegmentRequest segment_request(const Segment* before, const RunScope& scope);
  void plan_and_compile(Segment& segment, SegmentRequest& wanted, Segment* before, const RunScope& scope);
  void connect(Segment& segment, const SegmentRequest& wanted, const RunScope& scope);
  void keep_known(Segment& segment, const SegmentRequest& wanted);
  std::unique_ptr<Program> compile_planned(const SegmentPlan& plan, const RunScope& scope);
  std::shared_ptr<Segment> compile_whole(const RunScope& scope);
  Tail* split(Segment& before, const SegmentPlan& plan, const RunScope& scope);
  ProgramRequest request() const;
  Source source(int value, const SegmentPlan& plan, const RunScope& scope);
  DynamicStep prepare(const Node& node, const SegmentPlan& plan, const RunScope& scope);
  Cell& cell(int value) { return cell(plan_graph->name(value)); }
  size_t output_index(const std::string& name) const {
    const auto found = output_indices.find(name);
    return found == output_indices.end() ? kNoOutput : found->second;
  }
  void run_program(Segment& segment, OutputPlaces& places, const RunScope& scope);
  void run_dynamic(DynamicStep& step, OutputPlaces& places, const RunScope& scope);
};

namespace {

// The run of one node.
class NodeRun : public DynamicContext {
 public:
  NodeRun(Executor::Impl& executor, DynamicStep& step, OutputPlaces& places, const RunScope& scope)
      : DynamicContext(step.node, executor.settings.model->opset(step.node.domain)),
        executor_(executor),
        step_(step),
        places_(places),
        scope_(scope) {}

  ValueRef value(size_t i) const override {
    expect(has_input(i), "input ", i, " is required but missing");
    return step_.inputs[i].value();
  }
  void check_limits(size_t o, DType dtype, const Shape& shape) const override {
    check_value(*this, o, dtype, shape, executor_.settings.limits);
  }
  const Tensor& out(size_t o, DType dtype, const Shape& shape) override {
    expect(has_output(o), "there is no output ", o);
    check_limits(o, dtype, shape);
    Cell& cell = *step_.outputs[o];
    const size_t output = step_.graph_outputs[o];
    const Tensor& place =
        output != kNoOutput ? places_.place(output, dtype, shape) : cell.buffer.reset(dtype, shape);
    cell.value = place;
    if (output != kNoOutput) executor_.places_of_outputs[output] = place;
    return place;
  }
  void set(size_t o, const ValueRef& value) override {
    if (!has_output(o)) return;
    const size_t output = step_.graph_outputs[o];
    Cell& cell = *step_.outputs[o];
    if (const Tensor* tensor = value.tensor()) {
      if (output != kNoOutput) return out(o, tensor->dtype(), tensor->shape()).copy_from(*tensor);
      cell.view = *tensor;
      cell.value = cell.view;
      return;
    }
    if (value.sequence()) {
      check_value(*this, o, *value.sequence(), executor_.settings.limits);
      cell.sequence = *value.sequence();
      cell.value = cell.sequence;
    } else {
      cell.value = {};
    }
    if (output == kNoOutput) return;
    executor_.places_of_outputs[output] = cell.value;
    places_.take(output, cell.value);
  }
  TensorBuffer& buffer(size_t k) override {
    while (step_.buffers.size() <= k) step_.buffers.emplace_back();
    return step_.buffers[k];
  }
  void run_body(const std::string& attribute, std::span<const ValueRef> inputs, OutputPlaces& outputs,
                int64_t iteration) override;
  std::vector<ValueInfo> body_types(const std::string& attribute,
                                    const std::vector<ValueInfo>& inputs) override;

 private:
  Body& body(const std::string& attribute) {
    const auto found = step_.bodies.find(attribute);
    expect(found != step_.bodies.end(), "attribute '", attribute, "' is missing or not a graph");
    return found->second;
  }

  Executor::Impl& executor_;
  DynamicStep& step_;
  OutputPlaces& places_;
  const RunScope& scope_;
};

void NodeRun::run_body(const std::string& attribute, std::span<const ValueRef> inputs, OutputPlaces& outputs,
                       int64_t iteration) {
  check_terminate(scope_.terminate);
  Body& to_run = body(attribute);
  std::vector<ValueRef> all(inputs.begin(), inputs.end());
  for (const Source& source : to_run.captured) all.push_back(source.value());
  RunScope inner = scope_;
  inner.number = inner_run(scope_.number, iteration);
  inner.started = nullptr;
  to_run.executor->run(all, outputs, inner);
}

std::vector<ValueInfo> NodeRun::body_types(const std::string& attribute,
                                           const std::vector<ValueInfo>& inputs) {
  const auto found = node().attributes.find(attribute);
  expect(found != node().attributes.end(), "attribute '", attribute, "' is missing");
  const auto* graph = std::get_if<std::shared_ptr<Graph>>(&found->second);
  expect(graph && *graph, "attribute '", attribute, "' is not a graph");
  Model model;
  model.opsets = executor_.settings.model->opsets;
  model.graph = **graph;
  for (size_t i = 0; i < model.graph.inputs.size() && i < inputs.size(); ++i) {
    const std::string name = model.graph.inputs[i].name;
    model.graph.inputs[i] = inputs[i];
    model.graph.inputs[i].name = name;
  }
  for (const auto& [name, source] : body(attribute).around) {
    model.graph.inputs.push_back(info_of(source.value()));
    model.graph.inputs.back().name = name;
  }
  const ValueTypes types(model);
  std::vector<ValueInfo> infos;
  for (const ValueInfo& output : model.graph.outputs) infos.push_back(types.info(output.name));
  return infos;
}

}  // namespace

Segment* Executor::Impl::find(Segments& list, std::span<const Cell* const> values, int variant) {
  const auto fits = [&](const std::shared_ptr<Segment>& s) {
    if (s->variant && *s->variant != variant) return false;
    for (size_t i = 0; i < values.size(); ++i)
      if (!s->forms[i].fits(values[i]->value)) return false;
    return std::all_of(s->contents.begin(), s->contents.end(),
                       [](const auto& c) { return holds(c.first.tensor(), c.second); });
  };
  const auto found = std::find_if(list.begin(), list.end(), fits);
  if (found == list.end()) return nullptr;
  list.splice(list.begin(), list, found);
  return list.front().get();
}

Segment& Executor::Impl::add(Segments& list, size_t most, std::span<const Cell* const> values,
                             std::shared_ptr<Segment> segment) {
  ++compiled;
  for (const Cell* value : values) segment->forms.emplace_back(value->value);
  list.push_front(std::move(segment));
  if (list.size() > most) list.pop_back();
  return *list.front();
}

ProgramRequest Executor::Impl::request() const {
  ProgramRequest request;
  request.graph = &graph;
  request.opsets = &settings.model->opsets;
  request.layouts = settings.layouts;
  request.arena = settings.arena;
  request.precision = settings.precision;
  request.memory_budget = settings.memory_budget;
  request.check_finite = settings.check_finite;
  request.updated_together = settings.updated_together;
  request.limits = settings.limits;
  return request;
}

std::shared_ptr<Segment> Executor::Impl::compile_whole(const RunScope& scope) {
  auto segment = std::make_shared<Segment>();
  segment->variant = scope.variant;
  segment->last = true;
  ProgramRequest wanted = request();
  for (const auto& [name, value] : *scope.states)
    if (read.count(name)) wanted.states.emplace(name, value);
  wanted.inputs = inputs;
  for (const Cell* input : input_cells) {
    wanted.example_inputs.push_back(*input->value.tensor());
    segment->inputs.push_back({input, {}});
  }
  wanted.constants = *scope.constants;
  for (const auto& [name, value] : constants) wanted.constants.emplace(name, value);
  wanted.outputs = outputs;
  for (size_t o = 0; o < outputs.size(); ++o) segment->targets.push_back({nullptr, o});
  segment->program = std::make_unique<Program>(wanted);
  return segment;
}

Source Executor::Impl::source(int value, const SegmentPlan& plan, const RunScope& scope) {
  if (const Tensor* constant = plan.constant(value)) return {nullptr, *constant};
  if (plan_graph->is_state(value)) return {nullptr, scope.states->at(plan_graph->name(value))};
  return {&cell(value), {}};
}

// Where to split the plan of a successor into a part for its shapes and a part for all shapes; null if it
// should not be split.
Tail* Executor::Impl::split(Segment& before, const SegmentPlan& plan, const RunScope& scope) {
  if (before.results.empty() || !plan.dynamic.empty() || !plan.rest.empty()) return nullptr;
  const auto [reference, fresh] = before.references.try_emplace(scope.variant, plan);
  if (fresh) {
    reference->second.nodes.clear();
    return nullptr;
  }
  std::unordered_set<int> nodes = unchanged_nodes(plan, reference->second);
  if (nodes.size() < kWorthSharing || nodes.size() == plan.nodes.size()) return nullptr;
  for (Tail& tail : before.tails)
    if (tail.nodes == nodes) return &tail;
  if (before.tails.size() >= kTails) return nullptr;
  before.tails.push_back({std::move(nodes), {}});
  return &before.tails.back();
}

// The request for the part of the graph that remains after a segment; for the whole graph if there is no
// segment.
SegmentRequest Executor::Impl::segment_request(const Segment* before, const RunScope& scope) {
  SegmentRequest wanted;
  wanted.graph = &*plan_graph;
  wanted.states = scope.states;
  wanted.fixed = &constants;
  wanted.of_variant = scope.constants;
  wanted.limits = settings.limits;
  if (before) {
    wanted.before = &before->plan;
    wanted.outputs = before->outputs;
    for (const auto& [value, known] : before->known) wanted.values.emplace_back(value, known->value);
  } else {
    for (size_t i = 0; i < inputs.size(); ++i)
      wanted.values.emplace_back(plan_graph->number(inputs[i]), input_cells[i]->value);
    for (const auto& [name, index] : output_indices) wanted.outputs.push_back(plan_graph->number(name));
    std::sort(wanted.outputs.begin(), wanted.outputs.end());
  }
  return wanted;
}

// Plans a segment and compiles its Program.
void Executor::Impl::plan_and_compile(Segment& segment, SegmentRequest& wanted, Segment* before,
                                      const RunScope& scope) {
  SegmentPlan& plan = segment.plan;
  while (true) {
    plan = plan_segment(wanted);
    if (before && wanted.later.empty()) {
      if ((segment.tail = split(*before, plan, scope))) {
        wanted.later = segment.tail->nodes;
        plan = plan_segment(wanted);
      }
    }
    try {
      segment.program = compile_planned(plan, scope);
      break;
    } catch (const DataDependent& e) {
      // A kernel needs a value that no shape depends on.
      if (!wanted.wanted.insert(plan_graph->number(e.value)).second) throw;
    }
  }
  require(!plan.nodes.empty() || !plan.dynamic.empty() || plan.rest.empty(), ErrorCode::kFail,
          plan.rest.empty() ? "" : plan.rest.front()->node->label(), ": its inputs cannot be computed");
}

// Finds the places that a segment reads and writes.
void Executor::Impl::connect(Segment& segment, const SegmentRequest& wanted, const RunScope& scope) {
  const PlanGraph& planned = *plan_graph;
  const SegmentPlan& plan = segment.plan;
  if (plan.of_variant) segment.variant = scope.variant;
  for (const int value : plan.shape_deciders) {
    Source decider;
    if (planned.is_state(value))
      decider.fixed = scope.states->at(planned.name(value));
    else
      decider.cell = &cell(value);
    segment.contents.emplace_back(decider, *plan.constant(value));
  }
  for (const int value : plan.inputs) segment.inputs.push_back({&cell(value), {}});
  for (const int value : plan.outputs) segment.targets.push_back({&cell(value), 0});
  std::unordered_set<int> made(plan.made.begin(), plan.made.end());
  for (const int value : plan.made) segment.targets.push_back({nullptr, output_index(planned.name(value))});
  for (const PlanNode* node : plan.dynamic) {
    segment.dynamic.push_back(prepare(*node->node, plan, scope));
    made.insert(node->outputs.begin(), node->outputs.end());
  }
  for (const int value : wanted.outputs) {
    const KnownValue* known = plan.find(value);
    if (!known || known->kind != KnownValue::Kind::kOther) continue;
    segment.passed.emplace_back(&cell(value), output_index(planned.name(value)));
    made.insert(value);
  }
  for (const int value : wanted.outputs)
    if (!made.count(value)) segment.outputs.push_back(value);
  segment.last = plan.rest.empty() && segment.outputs.empty();
  require(segment.last || !plan.rest.empty(), ErrorCode::kInvalidGraph, "the graph's output '",
          segment.outputs.empty() ? "" : planned.name(segment.outputs[0]), "' is not produced by any node");
}

// Notes which of the values known at the segment's end are read later.
void Executor::Impl::keep_known(Segment& segment, const SegmentRequest& wanted) {
  const SegmentPlan& plan = segment.plan;
  std::vector<bool> needed(plan_graph->value_count());
  for (const int value : segment.outputs) needed[static_cast<size_t>(value)] = true;
  for (const PlanNode* node : plan.rest)
    for (const int value : node->read) needed[static_cast<size_t>(value)] = true;
  const auto keep = [&](int value) {
    if (value < 0 || !needed[static_cast<size_t>(value)]) return false;
    needed[static_cast<size_t>(value)] = false;  // lists each value once
    segment.known.emplace_back(value, &cell(value));
    return true;
  };
  for (const auto& [value, given] : wanted.values) keep(value);
  for (const int value : plan.outputs) keep(value);
  for (const PlanNode* node : plan.dynamic)
    for (const int value : node->outputs)
      if (keep(value)) segment.results.push_back(&cell(value));
}

std::shared_ptr<Segment> Executor::Impl::compile(Segment* before, const RunScope& scope) {
  if (!plan_graph) plan_graph.emplace(graph, settings.model->opsets, *scope.states);
  SegmentRequest wanted = segment_request(before, scope);
  auto segment = std::make_shared<Segment>();
  plan_and_compile(*segment, wanted, before, scope);
  connect(*segment, wanted, scope);
  keep_known(*segment, wanted);
  segment->plan.nodes.clear();
  segment->plan.dynamic.clear();
  if (segment->last) segment->plan = {};
  // An existing tail was compiled for values known at the end of another segment. They may
  // differ: each variant has its own references, and a kernel of one segment may have needed the contents
  // of a value.
  if (segment->tail)
    for (const auto& [variant, known] : segment->tail->compiled)
      if (same_rest(segment->plan, known.before)) segment->next.push_front(known.segment);
  return segment;
}

// The Program of a plan; null if it computes nothing.
std::unique_ptr<Program> Executor::Impl::compile_planned(const SegmentPlan& plan, const RunScope& scope) {
  PlanGraph& planned = *plan_graph;
  ProgramRequest wanted = request();
  const auto read = [&](int value) {
    const std::string& name = planned.name(value);
    if (const Tensor* constant = plan.constant(value))
      wanted.constants.emplace(name, *constant);
    else if (planned.is_state(value))
      wanted.states.emplace(name, scope.states->at(name));
  };
  std::vector<Node> nodes;
  nodes.reserve(plan.nodes.size());
  for (const PlanNode* node : plan.nodes) {
    nodes.push_back(*node->node);
    std::for_each(node->read.begin(), node->read.end(), read);
  }
  wanted.nodes = &nodes;
  for (const int value : plan.inputs) {
    wanted.inputs.push_back(planned.name(value));
    wanted.example_inputs.push_back(*cell(value).value.tensor());
  }
  for (const int value : plan.outputs) wanted.outputs.push_back(planned.name(value));
  wanted.direct_outputs = plan.outputs.size();
  for (const int value : plan.made) {
    read(value);
    wanted.outputs.push_back(planned.name(value));
  }
  wanted.shape_of = [&](const std::string& name) {
    const KnownValue* known = plan.find(planned.find(name));
    return known && known->kind != KnownValue::Kind::kOther ? &known->shape : nullptr;
  };
  if (wanted.outputs.empty() && nodes.empty()) return nullptr;
  return std::make_unique<Program>(wanted);
}

DynamicStep Executor::Impl::prepare(const Node& node, const SegmentPlan& plan, const RunScope& scope) {
  DynamicStep step;
  step.node = node;
  step.op = find_operator(node.domain, node.op_type);
  const auto source_of = [&](const std::string& name) {
    return source(plan_graph->number(name), plan, scope);
  };
  for (const std::string& name : node.inputs)
    step.inputs.push_back(name.empty() ? Source{} : source_of(name));
  for (const std::string& name : node.outputs) {
    step.outputs.push_back(name.empty() ? nullptr : &cell(name));
    step.graph_outputs.push_back(name.empty() ? kNoOutput : output_index(name));
  }
  for (const auto& [attribute, value] : node.attributes) {
    const auto* shared = std::get_if<std::shared_ptr<Graph>>(&value);
    if (!shared || !*shared) continue;
    const Graph& body = **shared;
    Body& made = step.bodies[attribute];
    // The values that the subgraph reads from the enclosing graphs. Those that are equal in every run become
    // constants.
    Node reader;
    reader.attributes[attribute] = value;
    std::vector<std::string> captured = values_read(reader);
    std::sort(captured.begin(), captured.end());
    captured.erase(std::unique(captured.begin(), captured.end()), captured.end());
    Tensors fixed;
    std::vector<std::string> names;
    for (const ValueInfo& input : body.inputs) names.push_back(input.name);
    for (const std::string& name : captured) {
      made.around.emplace_back(name, source_of(name));
      if (scope.states->count(name) || scope.constants->count(name)) continue;
      if (const auto found = constants.find(name); found != constants.end()) {
        fixed.emplace(name, found->second);
      } else if (const auto found = graph.initializers.find(name); found != graph.initializers.end()) {
        fixed.emplace(name, found->second);
      } else {
        names.push_back(name);
        made.captured.push_back(source_of(name));
      }
    }
    std::unique_ptr<Executor>& executor = bodies[&body];
    if (!executor) {
      std::vector<std::string> results;
      for (const ValueInfo& output : body.outputs) results.push_back(output.name);
      executor = std::make_unique<Executor>(body, names, results, settings, fixed);
      executor->impl_->capacity = kOfSubgraphs;
    }
    made.executor = executor.get();
  }
  return step;
}

void Executor::Impl::run_program(Segment& segment, OutputPlaces& places, const RunScope& scope) {
  Program& program = *segment.program;
  program_inputs.clear();
  for (const Source& input : segment.inputs) program_inputs.push_back(&input.tensor());
  program_outputs.clear();
  for (size_t i = 0; i < segment.targets.size(); ++i) {
    const Target& target = segment.targets[i];
    const DType dtype = program.output_dtype(i);
    const Shape& shape = program.output_shape(i);
    const Tensor& place =
        target.cell ? target.cell->buffer.reset(dtype, shape) : places.place(target.output, dtype, shape);
    (target.cell ? target.cell->value : places_of_outputs[target.output]) = place;
    program_outputs.push_back(&place);
  }
  if (scope.started) *scope.started = true;
  program.run(program_inputs, program_outputs, scope.number, scope.terminate, scope.profile, scope.watch);
}

void Executor::Impl::run_dynamic(DynamicStep& step, OutputPlaces& places, const RunScope& scope) {
  check_terminate(scope.terminate);
  if (scope.started) *scope.started = true;
  const auto start = Profile::Clock::now();
  try {
    NodeRun run(*this, step, places, scope);
    step.op->kernels.run(run);
  } catch (const Error& e) {
    if (e.message().find(step.node.label()) != std::string::npos) throw;
    fail(e.code(), step.node.label(), ": ", e.message());
  } catch (const std::exception& e) {
    fail(ErrorCode::kRuntimeException, step.node.label(), ": ", e.what());
  }
  // The kernels of a subgraph have their own entries in the profile.
  if (scope.profile && step.bodies.empty())
    scope.profile->record(step.node.op_type, step.node.name.empty() ? step.node.outputs[0] : step.node.name,
                          start, Profile::Clock::now());
}

// Checks the limits on the values that the caller gives.
void Executor::Impl::check_given(std::span<const ValueRef> given, const RunScope& scope) const {
  for (size_t i = 0; i < given.size(); ++i)
    if (const Tensor* tensor = given[i].tensor())
      check_given_value(inputs[i], tensor->shape(), settings.limits);
  for (const auto& [name, value] : graph.initializers)
    check_given_value(name, value.shape(), settings.limits);
  for (const auto& [name, value] : *scope.states) check_given_value(name, value.shape(), settings.limits);
}

void Executor::Impl::run(std::span<const ValueRef> given, OutputPlaces& places, const RunScope& scope) {
  for (size_t i = 0; i < given.size(); ++i) input_cells[i]->value = given[i];
  const std::span<const Cell* const> keys(input_cells.data(), input_cells.size());
  Segment* segment = find(first, keys, scope.variant);
  whole = whole && (segment || std::all_of(given.begin(), given.end(),
                                           [](const ValueRef& value) { return value.tensor() != nullptr; }));
  if (!segment) check_given(given, scope);
  // Compilation can be terminated like the run, unless states that belong together may be half updated.
  const std::function<void()> check = [terminate = scope.terminate] { check_terminate(terminate); };
  const StopScope stop(settings.updated_together.empty() ? &check : nullptr);
  if (!segment && whole) {
    try {
      segment = &add(first, capacity, keys, compile_whole(scope));
    } catch (const DataDependent&) {
      whole = false;
    }
  }
  if (!segment) segment = &add(first, capacity, keys, compile(nullptr, scope));
  while (true) {
    if (segment->program) run_program(*segment, places, scope);
    for (DynamicStep& step : segment->dynamic) run_dynamic(step, places, scope);
    for (const auto& [from, output] : segment->passed)
      places.take(output, places_of_outputs[output] = from->value);
    if (segment->last) break;
    const std::span<const Cell* const> results(segment->results.data(), segment->results.size());
    Segment* next = find(segment->next, results, scope.variant);
    if (!next) {
      next = &add(segment->next, kSuccessors, results, compile(segment, scope));
      // The tail computes the same outputs after any other segment that was split before it.
      if (segment->tail && next->contents.empty() && next->last)
        segment->tail->compiled[scope.variant] = {segment->next.front(), segment->plan};
    }
    segment = next;
  }
  if (!whole)
    for (const auto& [from, to] : doubled) {
      const ValueRef value = places_of_outputs[from];
      if (const Tensor* tensor = value.tensor())
        places.place(to, tensor->dtype(), tensor->shape()).copy_from(*tensor);
      else
        places.take(to, value);
    }
}

Executor::Executor(const Graph& graph, std::vector<std::string> inputs, std::vector<std::string> outputs,
                   ExecutorSettings settings, std::unordered_map<std::string, Tensor> constants)
    : impl_(std::make_unique<Impl>(graph, std::move(inputs), std::move(outputs), std::move(settings),
                                   std::move(constants))) {}

Executor::~Executor() = default;

size_t Executor::compilations() const {
  size_t sum = impl_->compiled;
  for (const auto& [graph, body] : impl_->bodies) sum += body->compilations();
  return sum;
}

void Executor::run(std::span<const ValueRef> inputs, OutputPlaces& outputs, const RunScope& scope) {
  impl_->run(inputs, outputs, scope);
}

}  // namespace ortrain
