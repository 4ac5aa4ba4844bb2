// Stage: one model of a session (training, eval, inference), ready to run for any input shapes.
//
// A stage checks inputs against its model, looks up what was compiled for their types and shapes in a
// cache of eight entries, or compiles it, and runs it (program/executor.h). The stage of a training model
// has two variants: one overwrites gradients, for steps after a lazy reset, and one adds to them. Whether
// gradients are reset is a constant of the variant, not a value that kernels check.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "passes/pass.h"
#include "program/executor.h"
#include "runtime/text_tensor.h"
#include "session/custom_nodes.h"
#include "session/options.h"
#include "session/waiting.h"

namespace ortrain {

class Stage {
 public:
  // `what` names the model in messages ("training model"). Throws kNotImplemented naming every node that has
  // no kernel. The last three are those of ExecutorSettings.
  Stage(std::string what, Model model, std::vector<ValueInfo> inputs, std::vector<std::string> outputs,
        std::shared_ptr<Arena> arena, const SessionOptions& options, Precision precision = Precision::kFloat,
        size_t memory_budget = 0, std::unordered_map<std::string, LayoutPtr> layouts = {},
        std::set<std::string> updated_together = {}, PassPhase phase = PassPhase::kSession);

  const std::vector<ValueInfo>& inputs() const { return inputs_; }
  const std::vector<std::string>& input_names() const { return input_names_; }
  const std::vector<std::string>& output_names() const { return output_names_; }

  // Runs with the given inputs. An undefined output gets a new tensor; a defined one is checked and written
  // into. `states` and `constants` bind the other inputs of the graph. States must be the same in all runs,
  // constants in all runs of one `variant`.
  void run(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs, int variant,
           const std::unordered_map<std::string, Tensor>& states,
           const std::unordered_map<std::string, Tensor>& constants, const RunOptions* options,
           Profile* profile = nullptr, const StateWatch* watch = nullptr);
  // The same with values that need not be tensors. An output that is an undefined tensor is replaced with the
  // result; a sequence gets its own elements. Outputs whose flag in `replaceable` is set are replaced as well
  // if they do not fit.
  void run(std::span<const ValueRef> inputs, std::span<Value* const> outputs, int variant,
           const std::unordered_map<std::string, Tensor>& states,
           const std::unordered_map<std::string, Tensor>& constants, const RunOptions* options,
           Profile* profile = nullptr, const std::vector<bool>& replaceable = {},
           const StateWatch* watch = nullptr);

  // The number of the next run, by which random operators draw; it counts on from there.
  void number_next_run(uint64_t number) { runs_ = number; }

  // Whether the last run was aborted after its first kernel had started, so that states may be partly
  // updated.
  bool broke_off() const { return broke_off_; }

 private:
  class Places;
  class ValuePlaces;
  void check_inputs(std::span<const ValueRef> inputs);
  const Tensor& check_place(size_t output, Tensor& tensor, DType dtype, const Shape& shape);
  void own_texts();
  void run(std::span<const ValueRef> inputs, OutputPlaces& places, size_t places_count, RunScope scope,
           const RunOptions* options);

  std::string what_;
  Model model_;
  std::vector<ValueInfo> inputs_;
  std::vector<std::string> input_names_, output_names_;
  int threads_;
  SessionWaiting waiting_;
  bool flush_denormals_;
  std::vector<std::vector<int>> symbol_of_;  // for each input and axis, the number of its symbol; -1: none
  struct SizeOfSymbol {
    int64_t value;
    size_t input;
  };
  std::vector<SizeOfSymbol> symbol_sizes_;  // of each symbol, in the current run
  CustomNodes custom_nodes_;
  std::vector<ValueRef> given_;  // kept, so that a run allocates nothing
  std::unique_ptr<Executor> executor_;
  TextScope::Texts texts_;  // that kernels made in the last run
  // Outputs of strings, in the current run: new ones, and those of the caller.
  std::vector<std::pair<Tensor, Tensor*>> made_texts_;
  std::deque<std::pair<Tensor, Tensor>> given_texts_;
  uint64_t runs_;
  bool broke_off_ = false;
};

// Throws kNotImplemented naming every node of the model that cannot be run: because there is no kernel (with
// domain and opset), or because of the types of its inputs.
void check_operators(const Model& model, const std::string& what);

}  // namespace ortrain
