#include "session/stage.h"

#include <algorithm>
#include <map>

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

void collect_unknown(const Graph& graph, const Model& model, std::string& list, int& count) {
  for (const Node& node : graph.nodes) {
    if (!find_operator(node.domain, node.op_type)) {
      list += concat("\n  ", node.label(), ", domain '", node.domain.empty() ? "ai.onnx" : node.domain,
                     "', opset ", model.opset(node.domain));
      ++count;
    }
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute))
        collect_unknown(**sub, model, list, count);
  }
}

}  // namespace

void check_operators(const Model& model, const std::string& what) {
  std::string list;
  int count = 0;
  collect_unknown(model.graph, model, list, count);
  require(count == 0, ErrorCode::kNotImplemented, "the ", what, " has ", count,
          count == 1 ? " node" : " nodes", " whose operator has no kernel:", list);
}

Stage::Stage(std::string what, Model model, std::vector<ValueInfo> inputs, std::vector<std::string> outputs,
             std::shared_ptr<Arena> arena, const SessionOptions& options, Precision precision,
             size_t memory_budget)
    : what_(std::move(what)),
      model_(std::move(model)),
      inputs_(std::move(inputs)),
      output_names_(std::move(outputs)),
      arena_(std::move(arena)),
      memory_budget_(memory_budget),
      threads_(options.intra_op_threads),
      flush_denormals_(flush_denormals(options)),
      precision_(precision) {
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
  if (options.graph_optimization_level > 0) run_session_passes(model_, options.config);
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

void Stage::prepare_outputs(const Program& program, std::span<Tensor* const> outputs) const {
  require(outputs.size() == output_names_.size(), ErrorCode::kInvalidArgument, "the ", what_, " gives ",
          output_names_.size(), " outputs, but room for ", outputs.size(), " was given");
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]->defined()) {
      *outputs[i] = Tensor(program.output_dtype(i), program.output_shape(i));
      continue;
    }
    require(outputs[i]->dtype() == program.output_dtype(i) && outputs[i]->shape() == program.output_shape(i),
            ErrorCode::kInvalidArgument, "output ", i, " ('", output_names_[i], "') of the ", what_,
            ": its value is ", to_string(program.output_dtype(i)), to_string(program.output_shape(i)),
            ", but the tensor given for it is ", describe(*outputs[i]));
  }
}

void Stage::run(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs, int variant,
                const std::unordered_map<std::string, Tensor>& states,
                const std::unordered_map<std::string, Tensor>& constants, const RunOptions* options,
                Profile* profile) {
  broke_off_ = false;
  check_inputs(inputs);
  const ThreadScope threads(threads_);
  const DenormalsAsZero denormals(flush_denormals_);
  Program* program = programs_.find(inputs, variant);
  if (!program) {
    ProgramRequest request;
    request.graph = &model_.graph;
    request.opsets = &model_.opsets;
    request.inputs = input_names_;
    for (const Tensor* t : inputs) request.example_inputs.push_back(*t);
    request.states = states;
    request.constants = constants;
    request.outputs = output_names_;
    request.arena = arena_;
    request.precision = precision_;
    request.memory_budget = memory_budget_;
    program = &programs_.add(inputs, variant, std::make_unique<Program>(request));
  }
  prepare_outputs(*program, outputs);
  broke_off_ = true;
  program->run(inputs, outputs, runs_++, options ? &options->terminate : nullptr, profile);
  broke_off_ = false;
}

}  // namespace ortrain
