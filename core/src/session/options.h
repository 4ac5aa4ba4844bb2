// Options of sessions and of runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/onnx_io.h"
#include "program/limits.h"
#include "runtime/tensor.h"

namespace ortrain {

class CustomOperators;  // op/custom.h
class GivenThreads;     // runtime/given_threads.h

struct SessionOptions {
  int intra_op_threads = 0;         // 0: one per processor
  int inter_op_threads = 0;         // accepted for compatibility; nodes run one after another
  bool per_session_threads = true;  // false: the environment's number of threads overrides the session's
  int graph_optimization_level = 99;
  int execution_mode = 0;
  int log_severity_level = -1;
  int log_verbosity_level = 0;
  bool memory_pattern = true;
  bool cpu_memory_arena = true;
  bool deterministic_compute = false;
  std::string log_id;
  std::string optimized_model_path;
  std::optional<std::string> profile_prefix;          // start of the path of a profile, if one is recorded
  std::map<std::string, int64_t> dimensions;          // sizes of inputs' dimensions, by name
  std::map<std::string, int64_t> denoted_dimensions;  // sizes of inputs' dimensions, by denotation
  GivenInitializers initializers;                     // values that replace those of the model
  std::map<std::string, std::string> config;
  std::shared_ptr<const CustomOperators> custom_operators;  // of the program
  std::shared_ptr<GivenThreads> given_threads;              // made by the program; null: the library's
  std::function<void()> may_continue;  // called while a session is created; throws if that is canceled
};

// Fixes the dimensions of a model's inputs for which the options have a size, and whatever the model
// declares to have the same name.
void fix_dimensions(Model& model, const ModelNotes& notes, const SessionOptions& options);

// Throws kInvalidArgument if the key begins with "ortrain." but is not an entry that the library knows
// (session/generated/session_config.h), or if the entry does not accept the value; the limits that begin with
// "session.max_" are checked too. Other keys are onnxruntime's, with any value.
void check_config_entry(const std::string& key, const std::string& value);

// The value of an entry whose values are a fixed list; if the options do not have it, the default from the
// spec. Throws as check_config_entry does.
std::string config_choice(const SessionOptions& options, const std::string& key);

// The changes that a training session makes to a model besides the passes. Like a pass, it can be switched
// off, and it applies from a graph optimization level on.
struct SessionRewrite {
  std::string_view name;
  int level;
};
inline constexpr SessionRewrite kFoldFrozenParameters{"fold_frozen_parameters", 1};
inline constexpr SessionRewrite kKeepConvolutionWeights{"keep_convolution_weights", 3};
bool is_on(const SessionRewrite& rewrite, const SessionOptions& options);

// The entry "ortrain.memory_budget": the bytes that the intermediate values of a train step may take, a
// number optionally followed by K, M or G, or kAutomaticBudget. 0 without an entry; throws for other values.
size_t memory_budget(const SessionOptions& options);

// The entries "session.max_nodes" and "session.max_nesting", "session.max_elements" and "session.max_bytes";
// throw for values that are not numbers.
ModelLimits model_limits(const SessionOptions& options);
ProgramLimits program_limits(const SessionOptions& options);

// How a session reads its models: within the limits, and in the format of the entry
// "session.load_model_format". Throws for entries with other values.
ReadOptions read_options(const SessionOptions& options);

// Writes the model after optimization to the path of the options, if there is one: in the format of the entry
// "session.save_model_format", or else in the format of the extension.
void write_optimized(const Model& model, const SessionOptions& options);

// The entry "session.set_denormal_as_zero", "1" or "0": whether denormal numbers are treated as zero. False
// if there is no entry; throws for other values.
inline constexpr const char* kDenormalsKey = "session.set_denormal_as_zero";
bool flush_denormals(const SessionOptions& options);

// The entry "ortrain.check_finite", "1" or "0": whether a run stops at the first node that produces a NaN or
// an infinity. Throws for other values.
bool check_finite(const SessionOptions& options);

// The entry "ortrain.nonfinite_gradients": what an optimizer step does with gradients that are NaN or
// infinite.
enum class NonfiniteGradients { kError, kSkip, kApply };
NonfiniteGradients nonfinite_gradients(const SessionOptions& options);

// The entry "ortrain.first_run": the number of the first run, by which random operators draw. 0 if there is
// no entry; throws if it is not a number.
uint64_t first_run(const SessionOptions& options);

struct RunOptions {
  int log_severity_level = -1;
  int log_verbosity_level = 0;
  std::string tag;
  std::optional<std::string> profile_prefix = {};  // start of the path of a profile of each run
  std::atomic<bool> terminate{false};  // checked between nodes; if set, the run ends with an error
  std::map<std::string, std::string> config;
  // How a session runs a model with state: whether nodes that differ while training do so, and whether nodes
  // that update state run if no requested output needs them. Other sessions always compute no more than the
  // requested outputs need.
  bool training_mode = true;
  bool only_execute_path_to_fetches = false;
  // Where a run that computes gradients puts each of them, row-major, once it is complete, and the function
  // that it then calls with the place: the index of the first element, and their number.
  Tensor gradient_buffer = {};
  std::function<void(size_t first, size_t count)> gradient_ready = {};
  // Called instead of the run's kernels, which it has to start by calling `kernels` once, on the same thread.
  std::function<void(const std::function<void()>& kernels)> around = {};
  // Inputs of a forward session besides those of the call: the parameters of adapters.
  std::vector<std::pair<std::string, Tensor>> adapter_inputs = {};
};

}  // namespace ortrain
