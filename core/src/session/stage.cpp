#include "session/stage.h"

#include <algorithm>
#include <map>

#include "infer/value_types.h"
#include "op/custom.h"
#include "op/left_out.h"
#include "op/operator.h"
#include "passes/decompose.h"
#include "passes/pass.h"
#include "runtime/denormals.h"
#include "runtime/stop.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"
#include "session/custom_nodes.h"

namespace ortrain {

namespace {

std::string describe(const ValueInfo& info) {
  std::string out = to_string(info.dtype) + "[";
  if (info.dims)
    for (size_t i = 0; i < info.dims->size(); ++i) {
      const Dim& d = (*info.dims)[i];
      out += (i ? ", " : "") + (d.known() ? std::to_string(d.value) : d.symbol.empty() ? "?" : d.symbol);
    }
  else
    out += "...";
  out += "]";
  if (info.is_sequence) out = concat("a sequence of ", out);
  if (info.is_optional) out += ", or nothing";
  return out;
}

// The nodes whose operator cannot be run, one per line.
void collect_unknown(const Graph& graph, const Model& model, std::vector<std::string>& unknown) {
  for (const Node& node : graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (!op || is_only_declared(*op) || !op->carries(model.opset(node.domain))) {
      std::string line =
          concat("\n  ", node.label(), ", domain '", node.domain.empty() ? "ai.onnx" : node.domain,
                 "', opset ", model.opset(node.domain));
      if (op && !is_only_declared(*op))
        line += concat("; it is supported from opset ", op->traits.since, " on");
      unknown.push_back(std::move(line));
    }
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute))
        collect_unknown(**sub, model, unknown);
  }
}

// Whether a model has values that are not tensors.
bool has_others(const Graph& graph) {
  for (const std::vector<ValueInfo>* side : {&graph.inputs, &graph.outputs})
    for (const ValueInfo& info : *side)
      if (!info.is_tensor()) return true;
  for (const Node& node : graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    const bool controls = std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& a) {
      return std::holds_alternative<std::shared_ptr<Graph>>(a.second);
    });
    if (op && op->traits.takes_sequences && !op->rules.shape && !controls) return true;
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute); sub && has_others(**sub))
        return true;
  }
  return false;
}

}  // namespace

void check_operators(const Model& model, const std::string& what) {
  std::vector<std::string> unknown;
  collect_unknown(model.graph, model, unknown);
  std::string message;
  if (!unknown.empty())
    message =
        concat("the ", what, " has ", counted(unknown.size(), "node"), " whose operator has no kernel:");
  for (const std::string& line : unknown) message += line;
  if (!unknown.empty()) message += left_out_hint();
  if (has_others(model.graph)) {
    const ValueTypes types(model);
    if (!types.problems().empty())
      message += concat(message.empty() ? "" : "\n", "the ", what, " has nodes with invalid inputs:");
    for (const std::string& problem : types.problems()) message += "\n  " + problem;
  }
  require(message.empty(), ErrorCode::kNotImplemented, message);
}

Stage::Stage(std::string what, Model model, std::vector<ValueInfo> inputs, std::vector<std::string> outputs,
             std::shared_ptr<Arena> arena, const SessionOptions& options, Precision precision,
             size_t memory_budget, std::unordered_map<std::string, LayoutPtr> layouts,
             std::set<std::string> updated_together, PassPhase phase)
    : what_(std::move(what)),
      model_(std::move(model)),
      inputs_(std::move(inputs)),
      output_names_(std::move(outputs)),
      threads_(options.intra_op_threads),
      waiting_(options),
      flush_denormals_(flush_denormals(options)),
      runs_(first_run(options)) {
  std::map<std::string, int> symbols;
  for (const ValueInfo& info : inputs_) {
    input_names_.push_back(info.name);
    std::vector<int>& of = symbol_of_.emplace_back();
    for (const Dim& d : info.dims.value_or(std::vector<Dim>{}))
      of.push_back(d.known() || d.symbol.empty()
                       ? -1
                       : symbols.try_emplace(d.symbol, static_cast<int>(symbols.size())).first->second);
  }
  symbol_sizes_.resize(symbols.size());
  if (options.custom_operators) custom_nodes_ = bind_custom_nodes(model_, *options.custom_operators);
  check_operators(model_, what_);
  if (const std::vector<std::string> problems = decompose_operators(model_, DecomposeFor::kRun);
      !problems.empty()) {
    std::string list;
    for (const std::string& problem : problems) list += "\n  " + problem;
    fail(ErrorCode::kNotImplemented, "the ", what_, " has nodes in a form that is not supported:", list);
  }
  run_passes(model_, phase, options.config, options.graph_optimization_level, what_);
  write_optimized(model_, options);
  model_.graph.make_inner_names_unique();
  executor_ = std::make_unique<Executor>(
      model_.graph, input_names_, output_names_,
      ExecutorSettings{&model_, std::move(arena), precision, memory_budget, check_finite(options),
                       std::move(updated_together), std::move(layouts), program_limits(options)});
}

void Stage::check_inputs(std::span<const ValueRef> inputs) {
  require(inputs.size() == inputs_.size(), ErrorCode::kInvalidArgument, "the ", what_, " takes ",
          counted(inputs_.size(), "input"), ", found ", inputs.size());
  std::fill(symbol_sizes_.begin(), symbol_sizes_.end(), SizeOfSymbol{-1, 0});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueInfo& info = inputs_[i];
    const auto complain = [&](const std::string& more, const char* what = "") {
      fail(ErrorCode::kInvalidArgument, what, "input ", i, " ('", info.name, "') of the ", what_,
           ": expected ", describe(info), ", found ", describe(inputs[i]), more);
    };
    // Programs look for the words of onnxruntime's message.
    const auto complain_of_type = [&] {
      complain("; the element types differ", "Unexpected input data type: ");
    };
    if (inputs[i].is_nothing() && info.is_optional) continue;
    if (const Sequence* sequence = inputs[i].sequence()) {
      if (!info.is_sequence) complain("");
      if (info.dtype != DType::kUndefined && info.dtype != sequence->dtype()) complain_of_type();
      continue;
    }
    require(inputs[i].tensor() && inputs[i].tensor()->defined(), ErrorCode::kInvalidArgument, "input ", i,
            " ('", info.name, "') of the ", what_, " is not a tensor");
    if (info.is_sequence) complain("");
    const Tensor& t = *inputs[i].tensor();
    if (info.dtype != DType::kUndefined && info.dtype != t.dtype()) complain_of_type();
    if (!info.dims) continue;
    if (info.dims->size() != t.shape().size()) complain("; the ranks differ");
    for (size_t k = 0; k < t.shape().size(); ++k) {
      const Dim& d = (*info.dims)[k];
      if (d.known() && d.value != t.shape()[k]) complain(concat("; dimension ", k, " differs"));
      if (symbol_of_[i][k] < 0) continue;
      SizeOfSymbol& size = symbol_sizes_[static_cast<size_t>(symbol_of_[i][k])];
      if (size.value < 0)
        size = {t.shape()[k], i};
      else if (size.value != t.shape()[k])
        complain(concat("; '", d.symbol, "' is ", size.value, " in input '", inputs_[size.input].name, "'"));
    }
  }
}

// The tensor that the caller gave for an output: an undefined tensor is created, a defined one must fit.
const Tensor& Stage::check_place(size_t i, Tensor& tensor, DType dtype, const Shape& shape) {
  const bool is_text = dtype == DType::kString;
  if (!tensor.defined()) {
    tensor = Tensor(dtype, shape);
    if (is_text) made_texts_.emplace_back(tensor, &tensor);
    return tensor;
  }
  require(tensor.dtype() == dtype && tensor.shape() == shape, ErrorCode::kInvalidArgument, "output ", i,
          " ('", output_names_[i], "') of the ", what_, ": its value is ", to_string(dtype), to_string(shape),
          ", but the caller provided ", describe(ValueRef(tensor)));
  // A tensor that owns its texts gets them after the run.
  return is_text ? given_texts_.emplace_back(Tensor(dtype, shape), tensor).first : tensor;
}

// Texts that kernels made end with the next run, so outputs get their own.
void Stage::own_texts() {
  for (auto& [made, output] : made_texts_) *output = with_own_texts(made);
  for (const auto& [made, given] : given_texts_)
    for (int64_t i = 0; i < made.size(); ++i)
      own_text(given, static_cast<size_t>(i)) = text(text_places(made)[i]);
}

class Stage::Places : public OutputPlaces {
 public:
  Places(Stage& stage, std::span<Tensor* const> outputs) : stage_(stage), outputs_(outputs) {}
  const Tensor& place(size_t i, DType dtype, const Shape& shape) override {
    return stage_.check_place(i, *outputs_[i], dtype, shape);
  }
  void take(size_t i, const ValueRef& value) override {
    fail(ErrorCode::kInvalidArgument, "output ", i, " ('", stage_.output_names_[i], "') of the ",
         stage_.what_, " is ", describe(value), ", expected a tensor");
  }

 private:
  Stage& stage_;
  std::span<Tensor* const> outputs_;
};

class Stage::ValuePlaces : public OutputPlaces {
 public:
  ValuePlaces(Stage& stage, std::span<Value* const> outputs, const std::vector<bool>& replaceable)
      : stage_(stage), outputs_(outputs), replaceable_(replaceable) {}
  const Tensor& place(size_t i, DType dtype, const Shape& shape) override {
    auto* tensor = std::get_if<Tensor>(outputs_[i]);
    if (is_replaceable(i) && (!tensor || tensor->dtype() != dtype || tensor->shape() != shape))
      tensor = &outputs_[i]->emplace<Tensor>();
    require(tensor != nullptr, ErrorCode::kInvalidArgument, "output ", i, " ('", stage_.output_names_[i],
            "') of the ", stage_.what_, ": its value is ", to_string(dtype), to_string(shape),
            ", but the caller provided ", describe(ValueRef(*outputs_[i])));
    return stage_.check_place(i, *tensor, dtype, shape);
  }
  void take(size_t i, const ValueRef& value) override {
    const auto* given = std::get_if<Tensor>(outputs_[i]);
    require(is_replaceable(i) || (given && !given->defined()), ErrorCode::kInvalidArgument, "output ", i,
            " ('", stage_.output_names_[i], "') of the ", stage_.what_, ": its value is ", describe(value),
            ", which cannot be written into a value of the caller");
    if (value.sequence())
      *outputs_[i] = value.sequence()->clone();
    else
      *outputs_[i] = Nothing{};
  }

 private:
  bool is_replaceable(size_t i) const { return i < replaceable_.size() && replaceable_[i]; }

  Stage& stage_;
  std::span<Value* const> outputs_;
  const std::vector<bool>& replaceable_;
};

void Stage::run(std::span<const ValueRef> inputs, OutputPlaces& places, size_t places_count, RunScope scope,
                const RunOptions* options) {
  broke_off_ = false;
  check_terminate(options ? &options->terminate : nullptr);
  check_inputs(inputs);
  require(places_count == output_names_.size(), ErrorCode::kInvalidArgument, "the ", what_, " gives ",
          counted(output_names_.size(), "output"), ", but the caller provided room for ", places_count);
  const ThreadScope threads(threads_);
  const SessionWaiting::Scope waiting = waiting_.scope();
  const DenormalsAsZero denormals(flush_denormals_);
  scope.number = runs_++;
  scope.terminate = options ? &options->terminate : nullptr;
  scope.started = &broke_off_;
  made_texts_.clear();
  given_texts_.clear();
  const TextScope kept(texts_);
  const auto kernels = [&] { executor_->run(inputs, places, scope); };
  if (options && options->around)
    options->around(std::ref(kernels));  // allocates nothing
  else
    kernels();
  own_texts();
  broke_off_ = false;
}

void Stage::run(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs, int variant,
                const std::unordered_map<std::string, Tensor>& states,
                const std::unordered_map<std::string, Tensor>& constants, const RunOptions* options,
                Profile* profile, const StateWatch* watch) {
  given_.assign(inputs.begin(), inputs.end());
  Places places(*this, outputs);
  run(given_, places, outputs.size(),
      RunScope{
          .variant = variant, .states = &states, .constants = &constants, .profile = profile, .watch = watch},
      options);
}

void Stage::run(std::span<const ValueRef> inputs, std::span<Value* const> outputs, int variant,
                const std::unordered_map<std::string, Tensor>& states,
                const std::unordered_map<std::string, Tensor>& constants, const RunOptions* options,
                Profile* profile, const std::vector<bool>& replaceable, const StateWatch* watch) {
  ValuePlaces places(*this, outputs, replaceable);
  run(inputs, places, outputs.size(),
      RunScope{
          .variant = variant, .states = &states, .constants = &constants, .profile = profile, .watch = watch},
      options);
}

}  // namespace ortrain
