// Options of sessions and of runs.
#include <algorithm>
#include <cstring>
#include <memory>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "runtime/path.h"
#include "session/waiting.h"

namespace ortrain::capi {
namespace {

void add_entry(std::map<std::string, std::string>& config, const char* key, const char* value) {
  require(*key != '\0', ErrorCode::kInvalidArgument, "config_key is empty, expected the name of an entry");
  config[key] = value;
}

// The first value of a name counts, as in onnxruntime.
void add_dim(std::map<std::string, int64_t>& dims, const char* argument, const char* name, int64_t dim) {
  require(*name != '\0', ErrorCode::kInvalidArgument, argument, " is empty, expected a name");
  require(dim >= 0, ErrorCode::kInvalidArgument, "the dimension '", name,
          "': expected a dimension of 0 or more, found ", dim);
  dims.try_emplace(name, dim);
}

void add_initializer(std::map<std::string, Tensor>& all, const char* name, const OrtValue& value) {
  require(*name != '\0', ErrorCode::kInvalidArgument, "the name of an initializer is empty");
  require(all.try_emplace(name, tensor_of(value)).second, ErrorCode::kInvalidArgument, "the initializer '",
          name, "' has a value already");
}

}  // namespace

SessionOptions options_of(const OrtEnv& env, const OrtSessionOptions* options) {
  SessionOptions out = options != nullptr ? options->value : SessionOptions();
  const bool shares_threads = env.shared_threads && !out.per_session_threads;
  if (shares_threads) {
    out.given_threads = env.given_threads;
    out.intra_op_threads = env.shared_threads->intra_op_threads;
    if (env.shared_threads->denormal_as_zero) out.config.try_emplace(kDenormalsKey, "1");
    out.config.insert_or_assign(kSpinningKey, env.shared_threads->allow_spinning ? "1" : "0");
  }
  if (options != nullptr)
    out.may_continue = [canceled = options->canceled] {
      constexpr auto kCanceled = static_cast<ErrorCode>(ORT_MODEL_LOAD_CANCELED);
      require(!*canceled, kCanceled, "loading the model was canceled due to user request");
    };
  if (options != nullptr && !shares_threads) out.given_threads = threads_of(*options, out);
  if constexpr (kCustomOperatorsPart.is_built)
    if (out.custom_operators) {
      ProgramOperators operators(static_cast<const ProgramOperators&>(*out.custom_operators));
      operators.check();
      operators.logger = logger_of(env, options);
      operators.config = out.config;
      out.custom_operators = std::make_shared<const ProgramOperators>(std::move(operators));
    }
  return out;
}

void CreateSessionOptions(OrtSessionOptions** options) { *options = new OrtSessionOptions; }

void SessionOptionsSetLoadCancellationFlag(OrtSessionOptions* options, bool cancel) {
  *options->canceled = cancel;
}

void CloneSessionOptions(const OrtSessionOptions* in_options, OrtSessionOptions** out_options) {
  *out_options = new OrtSessionOptions(*in_options);
}

void SetSessionExecutionMode(OrtSessionOptions* options, ExecutionMode execution_mode) {
  require(execution_mode == ORT_SEQUENTIAL || execution_mode == ORT_PARALLEL, ErrorCode::kInvalidArgument,
          "execution mode is ", static_cast<int>(execution_mode), ", expected 0 or 1");
  options->value.execution_mode = execution_mode;
}

void EnableMemPattern(OrtSessionOptions* options) { options->value.memory_pattern = true; }
void DisableMemPattern(OrtSessionOptions* options) { options->value.memory_pattern = false; }
void GetMemPatternEnabled(const OrtSessionOptions* options, int* out) {
  *out = options->value.memory_pattern;
}
void GetSessionExecutionMode(const OrtSessionOptions* options, ExecutionMode* out) {
  *out = static_cast<ExecutionMode>(options->value.execution_mode);
}
void EnableCpuMemArena(OrtSessionOptions* options) { options->value.cpu_memory_arena = true; }
void DisableCpuMemArena(OrtSessionOptions* options) { options->value.cpu_memory_arena = false; }
void SetOptimizedModelFilePath(OrtSessionOptions* options, const ORTCHAR_T* optimized_model_filepath) {
  require(*optimized_model_filepath != 0, ErrorCode::kInvalidArgument,
          "optimized_model_filepath is empty, expected the name of a file");
  options->value.optimized_model_path = to_utf8(optimized_model_filepath);
}
void EnableProfiling(OrtSessionOptions* options, const ORTCHAR_T* profile_file_prefix) {
  options->value.profile_prefix = to_utf8(profile_file_prefix);
}
void DisableProfiling(OrtSessionOptions* options) { options->value.profile_prefix.reset(); }

void AddFreeDimensionOverride(OrtSessionOptions* options, const char* dim_denotation, int64_t dim_value) {
  add_dim(options->value.denoted_dimensions, "dim_denotation", dim_denotation, dim_value);
}
void AddFreeDimensionOverrideByName(OrtSessionOptions* options, const char* dim_name, int64_t dim_value) {
  add_dim(options->value.dimensions, "dim_name", dim_name, dim_value);
}

void AddInitializer(OrtSessionOptions* options, const char* name, const OrtValue* val) {
  add_initializer(options->value.initializers.any, name, *val);
}
void AddExternalInitializers(OrtSessionOptions* options, const char* const* initializer_names,
                             const OrtValue* const* initializers, size_t num_initializers) {
  auto all = options->value.initializers.external;  // all of them are added or none
  for (size_t i = 0; i < num_initializers; ++i) add_initializer(all, initializer_names[i], *initializers[i]);
  options->value.initializers.external = std::move(all);
}

void AddExternalInitializersFromFilesInMemory(OrtSessionOptions* options,
                                              const ORTCHAR_T* const* external_initializer_file_names,
                                              char* const* external_initializer_file_buffer_array,
                                              const size_t* external_initializer_file_lengths,
                                              size_t num_external_initializer_files) {
  auto all = options->value.initializers.files;  // all of them are added or none
  for (size_t i = 0; i < num_external_initializer_files; ++i) {
    const std::string name = to_utf8(external_initializer_file_names[i]);
    require(!name.empty(), ErrorCode::kInvalidArgument, "the name of a file is empty");
    const auto* contents = reinterpret_cast<const std::byte*>(external_initializer_file_buffer_array[i]);
    require(all.try_emplace(name, contents, external_initializer_file_lengths[i]).second,
            ErrorCode::kInvalidArgument, "the file '", name, "' has contents already");
  }
  options->value.initializers.files = std::move(all);
}

void GetSessionOptionsConfigEntries(const OrtSessionOptions* options, OrtKeyValuePairs** out) {
  auto pairs = std::make_unique<OrtKeyValuePairs>();
  pairs->entries = options->value.config;
  pairs->changed();
  *out = pairs.release();
}

void SetSessionLogId(OrtSessionOptions* options, const char* logid) { options->value.log_id = logid; }
void DisablePerSessionThreads(OrtSessionOptions* options) { options->value.per_session_threads = false; }
void SetDeterministicCompute(OrtSessionOptions* options, bool value) {
  options->value.deterministic_compute = value;
}

void SetSessionLogVerbosityLevel(OrtSessionOptions* options, int session_log_verbosity_level) {
  options->value.log_verbosity_level = session_log_verbosity_level;
}

void SetSessionLogSeverityLevel(OrtSessionOptions* options, int session_log_severity_level) {
  check_severity(session_log_severity_level, true);
  options->value.log_severity_level = session_log_severity_level;
}

void SetSessionGraphOptimizationLevel(OrtSessionOptions* options,
                                      GraphOptimizationLevel graph_optimization_level) {
  const int level = graph_optimization_level;
  require((level >= ORT_DISABLE_ALL && level <= ORT_ENABLE_LAYOUT) || level == ORT_ENABLE_ALL,
          ErrorCode::kInvalidArgument, "graph optimization level is ", level, ", expected 0, 1, 2, 3 or 99");
  options->value.graph_optimization_level = level;
}

void SetIntraOpNumThreads(OrtSessionOptions* options, int intra_op_num_threads) {
  check_threads(intra_op_num_threads);
  options->value.intra_op_threads = intra_op_num_threads;
}

void SetInterOpNumThreads(OrtSessionOptions* options, int inter_op_num_threads) {
  check_threads(inter_op_num_threads);
  options->value.inter_op_threads = inter_op_num_threads;
}

void AddSessionConfigEntry(OrtSessionOptions* options, const char* config_key, const char* config_value) {
  check_config_entry(config_key, config_value);
  add_entry(options->value.config, config_key, config_value);
}

void HasSessionConfigEntry(const OrtSessionOptions* options, const char* config_key, int* out) {
  *out = options->value.config.count(config_key) > 0;
}

void GetSessionConfigEntry(const OrtSessionOptions* options, const char* config_key, char* config_value,
                           size_t* size) {
  const auto entry = options->value.config.find(config_key);
  require(entry != options->value.config.end(), ErrorCode::kInvalidArgument, "the entry '", config_key,
          "' is not set, expected one set by AddSessionConfigEntry");
  const std::string& value = entry->second;
  const size_t needed = value.size() + 1, room = *size;
  *size = needed;
  if (config_value == nullptr) return;
  require(room >= needed, ErrorCode::kInvalidArgument, "the value of '", config_key, "' needs ",
          counted(needed, "byte"), " including its terminating zero, found room for ", room);
  std::memcpy(config_value, value.c_str(), needed);
}

void SessionOptionsAppendExecutionProvider(OrtSessionOptions*, const char* provider_name, const char* const*,
                                           const char* const*, size_t) {
  const std::string name = provider_name;
  if (name == "CPU") return;
  std::string known;
  for (const auto& provider : provider_names()) {
    if (name == provider) return;
    known += (known.empty() ? "" : ", ") + provider;
  }
  fail(ErrorCode::kInvalidArgument, "there is no provider '", name, "', available: ", known);
}

void CreateRunOptions(OrtRunOptions** out) { *out = new OrtRunOptions; }

void RunOptionsSetRunLogVerbosityLevel(OrtRunOptions* options, int log_verbosity_level) {
  options->value.log_verbosity_level = log_verbosity_level;
}
void RunOptionsSetRunLogSeverityLevel(OrtRunOptions* options, int log_severity_level) {
  check_severity(log_severity_level, true);
  options->value.log_severity_level = log_severity_level;
}
void RunOptionsSetRunTag(OrtRunOptions* options, const char* run_tag) { options->value.tag = run_tag; }
void RunOptionsGetRunLogVerbosityLevel(const OrtRunOptions* options, int* log_verbosity_level) {
  *log_verbosity_level = options->value.log_verbosity_level;
}
void RunOptionsGetRunLogSeverityLevel(const OrtRunOptions* options, int* log_severity_level) {
  *log_severity_level = options->value.log_severity_level;
}
void RunOptionsGetRunTag(const OrtRunOptions* options, const char** run_tag) {
  *run_tag = options->value.tag.c_str();
}
void RunOptionsSetTerminate(OrtRunOptions* options) { options->value.terminate = true; }
void RunOptionsEnableProfiling(OrtRunOptions* options, const ORTCHAR_T* profile_file_prefix) {
  options->value.profile_prefix = to_utf8(profile_file_prefix);
}
void RunOptionsDisableProfiling(OrtRunOptions* options) { options->value.profile_prefix.reset(); }
void RunOptionsSetSyncStream(OrtRunOptions*, OrtSyncStream*) {}
void RunOptionsUnsetTerminate(OrtRunOptions* options) { options->value.terminate = false; }

void RunOptionsSetTrainingMode(OrtRunOptions* options, bool training_mode) {
  options->value.training_mode = training_mode;
}
void RunOptionsSetOnlyExecutePathToFetches(OrtRunOptions* options, bool only_execute_path_to_fetches) {
  options->value.only_execute_path_to_fetches = only_execute_path_to_fetches;
}
void RunOptionsSetGradientBuffer(OrtRunOptions* options, OrtValue* buffer, OrtGradientReadyFn gradient_ready,
                                 void* user_data) {
  if (buffer == nullptr) {
    options->value.gradient_buffer = {};
    options->value.gradient_ready = nullptr;
    return;
  }
  options->value.gradient_buffer = tensor_of(*buffer);
  options->value.gradient_ready = [=](size_t first, size_t count) {
    gradient_ready(user_data, first, count);
  };
}

void AddRunConfigEntry(OrtRunOptions* options, const char* config_key, const char* config_value) {
  add_entry(options->value.config, config_key, config_value);
}

const char* GetRunConfigEntry(const OrtRunOptions* options, const char* config_key) {
  if (options == nullptr || config_key == nullptr) return nullptr;
  const auto entry = options->value.config.find(config_key);
  return entry == options->value.config.end() ? nullptr : entry->second.c_str();
}

}  // namespace ortrain::capi
