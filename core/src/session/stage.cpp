#include "session/stage.h"

#include <algorithm>
#include <map>

#include "ops/expansion.h"
#include "ops/operator.h"
#include "passes/pass.h"
#include "runtime/denormals.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

std::string describe(const ValueInfo& info) {
  std::string out = to_string(info.dtype) + "[";
  if (!info.dims) return out + "...]";
  for (size_t i = 0; i < info.dims->size(); ++i) {
    const Dim& d = (*info.dims)[i];
    out += (i ? ", " : "") + (d.known() ? std::to_string(d.value) : d.symbol.empty() ? "?" : d.symbol);
  }
  return out + "]";
}

std::string describe(const Tensor& t) { return to_string(t.dtype()) + to_string(t.shape()); }

// What a model holds that cannot be run.
struct Unknown {
  std::string nodes, sequences;
  int node_count = 0;
};

void collect_unknown(const Graph& graph, const Model& model, Unknown& unknown) {
  for (const std::vector<ValueInfo>* side : {&graph.inputs, &graph.outputs})
    for (const ValueInfo& info : *side)
      if (info.is_sequence) unknown.sequences += concat("\n  value \"", info.name, "\"");
  for (const Node& node : graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (!op || !op->carries(model.opset(node.domain))) {
      unknown.nodes +=
          concat("\n  ", node.label(), ", domain '", node.domain.empty() ? "ai.onnx" : node.domain,
                 "', opset ", model.opset(node.domain));
      if (op) unknown.nodes += concat("; it is known from opset ", op->since, " on");
      ++unknown.node_count;
    }
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute))
        collect_unknown(**sub, model, unknown);
  }
}

}  // namespace

void check_operators(const Model& model, const std::string& what) {
  Unknown unknown;
  collect_unknown(model.graph, model, unknown);
  std::string message;
  if (unknown.node_count > 0)
    message = concat("the ", what, " has ", unknown.node_count, unknown.node_count == 1 ? " node" : " nodes",
                     " whose operator has no kernel:", unknown.nodes);
  if (!unknown.sequences.empty())
    message += concat(message.empty() ? "" : "\n", "the ", what,
                      " has values that are sequences of tensors, which no kernel takes:", unknown.sequences);
  require(message.empty(), ErrorCode::kNotImplemented, message);
}

Stage::Stage(std::string what, Model model, std::vector<ValueInfo> inputs, std::vector<std::string> outputs,
             std::shared_ptr<Arena> arena, const SessionOptions& options, Precision precision,
             size_t memory_budget, std::unordered_map<std::string, LayoutPtr> layouts)
    : what_(std::move(what)),
      model_(std::move(model)),
      inputs_(std::move(inputs)),
      output_names_(std::move(outputs)),
      threads_(options.intra_op_threads),
      flush_denormals_(flush_denormals(options)) {
  std::map<std::string, int> symbols;
  for (const ValueInfo& info : inputs_) {
    input_names_.push_back(info.name);
    std::vector<int>& of = symbol_of_.emplace_back();
    for (const Dim& d : info.dims.value_or(std::vector<Dim>{}))
      of.push_back(d.known() || d.symbol.empty()
                       ? -1
                       : symbols.try_emplace(d.symbol, static_cast<int>(symbols.size())).first->second);
  }
  extents_.resize(symbols.size());
  check_operators(model_, what_);
  if (const std::vector<std::string> problems = expand_operators(model_, ExpandFor::kRun);
      !problems.empty()) {
    std::string list;
    for (const std::string& problem : problems) list += "\n  " + problem;
    fail(ErrorCode::kNotImplemented, "the ", what_, " has nodes in a form that is not supported:", list);
  }
  if (options.graph_optimization_level > 0) run_session_passes(model_, options.config);
  model_.graph.make_inner_names_unique();
  executor_ = std::make_unique<Executor>(
      model_.graph, input_names_, output_names_,
      ExecutorSettings{&model_, std::move(arena), precision, memory_budget, std::move(layouts)});
}

void Stage::check_inputs(std::span<const Tensor* const> inputs) {
  require(inputs.size() == inputs_.size(), ErrorCode::kInvalidArgument, "the ", what_, " takes ",
          inputs_.size(), " inputs, found ", inputs.size());
  std::fill(extents_.begin(), extents_.end(), Extent{-1, 0});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueInfo& info = inputs_[i];
    require(inputs[i] && inputs[i]->defined(), ErrorCode::kInvalidArgument, "input ", i, " ('", info.name,
            "') of the ", what_, " holds no tensor");
    const Tensor& t = *inputs[i];
    const auto complain = [&](const std::string& more) {
      fail(ErrorCode::kInvalidArgument, "input ", i, " ('", info.name, "') of the ", what_, ": expected ",
           describe(info), ", found ", describe(t), more);
    };
    if (info.dtype != DType::kUndefined && info.dtype != t.dtype()) complain("; the element types differ");
    if (!info.dims) continue;
    if (info.dims->size() != t.shape().size()) complain("; the ranks differ");
    for (size_t k = 0; k < t.shape().size(); ++k) {
      const Dim& d = (*info.dims)[k];
      if (d.known() && d.value != t.shape()[k]) complain(concat("; extent ", k, " differs"));
      if (symbol_of_[i][k] < 0) continue;
      Extent& extent = extents_[static_cast<size_t>(symbol_of_[i][k])];
      if (extent.value < 0)
        extent = {t.shape()[k], i};
      else if (extent.value != t.shape()[k])
        complain(
            concat("; '", d.symbol, "' is ", extent.value, " in input '", inputs_[extent.input].name, "'"));
    }
  }
}

// The tensors of the caller: an undefined one is made, a defined one has to fit.
class Stage::Places : public OutputPlaces {
 public:
  Places(const Stage& stage, std::span<Tensor* const> outputs) : stage_(stage), outputs_(outputs) {}

  const Tensor& place(size_t i, DType dtype, const Shape& shape) override {
    Tensor& tensor = *outputs_[i];
    if (!tensor.defined()) return tensor = Tensor(dtype, shape);
    require(tensor.dtype() == dtype && tensor.shape() == shape, ErrorCode::kInvalidArgument, "output ", i,
            " ('", stage_.output_names_[i], "') of the ", stage_.what_, ": its value is ", to_string(dtype),
            to_string(shape), ", but the tensor given for it is ", describe(tensor));
    return tensor;
  }

 private:
  const Stage& stage_;
  std::span<Tensor* const> outputs_;
};

void Stage::run(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs, int variant,
                const std::unordered_map<std::string, Tensor>& states,
                const std::unordered_map<std::string, Tensor>& constants, const RunOptions* options,
                Profile* profile) {
  broke_off_ = false;
  check_inputs(inputs);
  require(outputs.size() == output_names_.size(), ErrorCode::kInvalidArgument, "the ", what_, " gives ",
          output_names_.size(), " outputs, but room for ", outputs.size(), " was given");
  const ThreadScope threads(threads_);
  const DenormalsAsZero denormals(flush_denormals_);
  Places places(*this, outputs);
  RunScope scope;
  scope.variant = variant;
  scope.states = &states;
  scope.constants = &constants;
  scope.number = runs_++;
  scope.terminate = options ? &options->terminate : nullptr;
  scope.profile = profile;
  scope.started = &broke_off_;
  executor_->run(inputs, places, scope);
  broke_off_ = false;
}

}  // namespace ortrain
