// Options of sessions and of runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace ortrain {

struct SessionOptions {
  int intra_op_threads = 0;         // 0: as many as the machine has processors
  int inter_op_threads = 0;         // accepted for compatibility; nodes run one after another
  bool per_session_threads = true;  // false: the environment's number of threads goes before the session's
  int graph_optimization_level = 99;
  int execution_mode = 0;
  int log_severity_level = -1;
  int log_verbosity_level = 0;
  bool memory_pattern = true;
  bool cpu_memory_arena = true;
  bool deterministic_compute = false;
  std::string log_id;
  std::string optimized_model_path;
  std::map<std::string, std::string> config;
};

// Throws kInvalidArgument where the key begins with "ortrain." and is not of an entry that the library knows
// (session/generated/session_config.h), and where such an entry does not take the value. Other keys are
// onnxruntime's, and any value goes.
void check_config_entry(const std::string& key, const std::string& value);

// The value of an entry that is one of a list; where the options do not have it, the one that the spec
// states. Throws as check_config_entry does.
std::string config_choice(const SessionOptions& options, const std::string& key);

// What a training session itself does to a model, beside the passes. It is switched off as a pass is, and
// begins at a graph optimization level.
struct SessionRewrite {
  std::string_view name;
  int level;
};
inline constexpr SessionRewrite kFoldFrozenParameters{"fold_frozen_parameters", 1};
inline constexpr SessionRewrite kKeepConvolutionWeights{"keep_convolution_weights", 3};
bool is_on(const SessionRewrite& rewrite, const SessionOptions& options);

// The entry "ortrain.memory_budget": the bytes that the intermediate values of a train step may take, a
// number with K, M or G behind it or without. 0 where there is no entry; throws where it is no such number.
size_t memory_budget(const SessionOptions& options);

// The entry "session.set_denormal_as_zero", "1" or "0": whether denormal numbers count as zero. They do not
// where there is no entry; throws where it is neither.
inline constexpr const char* kDenormalsKey = "session.set_denormal_as_zero";
bool flush_denormals(const SessionOptions& options);

// The entry "ortrain.check_finite", "1" or "0": whether a run stops at the first node that produces a NaN or
// an infinity. Throws where it is neither.
bool check_finite(const SessionOptions& options);

struct RunOptions {
  int log_severity_level = -1;
  int log_verbosity_level = 0;
  std::string tag;
  std::atomic<bool> terminate{false};  // looked at between nodes; a run that sees it ends with an error
  std::map<std::string, std::string> config;
};

}  // namespace ortrain
