// Environment: where log messages go, and the threads that its sessions share.
#include <cstdio>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {

void check_severity(int level, bool allow_inherit) {
  const int least = allow_inherit ? -1 : ORT_LOGGING_LEVEL_VERBOSE;
  require(level >= least && level <= ORT_LOGGING_LEVEL_FATAL, ErrorCode::kInvalidArgument, "log severity is ",
          level, ", expected a number between ", least, " and 4");
}

void log(const OrtEnv& env, OrtLoggingLevel severity, const char* call, const std::string& message) {
  if (severity < env.level) return;
  if (env.function != nullptr) {
    env.function(env.parameter, severity, "ortrain", env.id.c_str(), call, message.c_str());
    return;
  }
  static const char* const names[] = {"verbose", "info", "warning", "error", "fatal"};
  std::fprintf(stderr, "[%s] %s: %s: %s\n", names[severity], env.id.c_str(), call, message.c_str());
}

void CreateEnvWithCustomLogger(OrtLoggingFunction logging_function, void* logger_param,
                               OrtLoggingLevel log_severity_level, const char* logid, OrtEnv** out) {
  check_severity(log_severity_level, false);
  *out = new OrtEnv{log_severity_level, logid, logging_function, logger_param};
}

void CreateEnv(OrtLoggingLevel log_severity_level, const char* logid, OrtEnv** out) {
  CreateEnvWithCustomLogger(nullptr, nullptr, log_severity_level, logid, out);
}

void CreateEnvWithCustomLoggerAndGlobalThreadPools(OrtLoggingFunction logging_function, void* logger_param,
                                                   OrtLoggingLevel log_severity_level, const char* logid,
                                                   const OrtThreadingOptions* tp_options, OrtEnv** out) {
  CreateEnvWithCustomLogger(logging_function, logger_param, log_severity_level, logid, out);
  (*out)->shared_threads = *tp_options;
}

void CreateEnvWithGlobalThreadPools(OrtLoggingLevel log_severity_level, const char* logid,
                                    const OrtThreadingOptions* tp_options, OrtEnv** out) {
  CreateEnvWithCustomLoggerAndGlobalThreadPools(nullptr, nullptr, log_severity_level, logid, tp_options, out);
}

void CreateThreadingOptions(OrtThreadingOptions** out) { *out = new OrtThreadingOptions; }

void SetGlobalIntraOpNumThreads(OrtThreadingOptions* tp_options, int intra_op_num_threads) {
  check_threads(intra_op_num_threads);
  tp_options->intra_op_threads = intra_op_num_threads;
}
void SetGlobalInterOpNumThreads(OrtThreadingOptions*, int inter_op_num_threads) {
  check_threads(inter_op_num_threads);
}
void SetGlobalSpinControl(OrtThreadingOptions*, int allow_spinning) {
  require(allow_spinning == 0 || allow_spinning == 1, ErrorCode::kInvalidArgument, "allow_spinning is ",
          allow_spinning, ", expected 0 or 1");
}
void SetGlobalDenormalAsZero(OrtThreadingOptions* tp_options) { tp_options->denormal_as_zero = true; }

void UpdateEnvWithCustomLogLevel(OrtEnv* ort_env, OrtLoggingLevel log_severity_level) {
  check_severity(log_severity_level, false);
  ort_env->level = log_severity_level;
}

void EnableTelemetryEvents(const OrtEnv*) {}
void DisableTelemetryEvents(const OrtEnv*) {}
void SetLanguageProjection(const OrtEnv*, OrtLanguageProjection) {}

}  // namespace ortrain::capi
