// Environment: where log messages go, and the threads that its sessions share.
#include <cstdio>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "runtime/path.h"

namespace ortrain::capi {

void check_severity(int level, bool allow_inherit) {
  const int least = allow_inherit ? -1 : ORT_LOGGING_LEVEL_VERBOSE;
  require(level >= least && level <= ORT_LOGGING_LEVEL_FATAL, ErrorCode::kInvalidArgument, "log severity is ",
          level, ", expected a number between ", least, " and 4");
}

void log(const OrtLogger& logger, OrtLoggingLevel severity, const char* place, const std::string& message) {
  if (severity < logger.level) return;
  if (logger.function != nullptr) {
    logger.function(logger.parameter, severity, "ortrain", logger.id.c_str(), place, message.c_str());
    return;
  }
  static const char* const names[] = {"verbose", "info", "warning", "error", "fatal"};
  std::fprintf(stderr, "[%s] %s: %s: %s\n", names[severity], logger.id.c_str(), place, message.c_str());
}

void log(const OrtEnv& env, OrtLoggingLevel severity, const char* call, const std::string& message) {
  if (severity >= env.level)
    log(OrtLogger{env.level, env.id, env.function, env.parameter}, severity, call, message);
}

std::shared_ptr<const OrtLogger> logger_of(const OrtEnv& env, const OrtSessionOptions* options) {
  OrtLogger logger{env.level, env.id, env.function, env.parameter};
  if (options != nullptr) {
    const SessionOptions& own = options->value;
    if (own.log_severity_level >= 0) logger.level = static_cast<OrtLoggingLevel>(own.log_severity_level);
    if (!own.log_id.empty()) logger.id = own.log_id;
    if (options->logging_function != nullptr) {
      logger.function = options->logging_function;
      logger.parameter = options->logging_parameter;
    }
  }
  return std::make_shared<const OrtLogger>(std::move(logger));
}

void SetUserLoggingFunction(OrtSessionOptions* options, OrtLoggingFunction user_logging_function,
                            void* user_logging_param) {
  options->logging_function = user_logging_function;
  options->logging_parameter = user_logging_param;
}

void Logger_LogMessage(const OrtLogger* logger, OrtLoggingLevel log_severity_level, const char* message,
                       const ORTCHAR_T* file_path, int line_number, const char* func_name) {
  check_severity(log_severity_level, false);
  log(*logger, log_severity_level, concat(to_utf8(file_path), ":", line_number, " ", func_name).c_str(),
      message);
}
void Logger_GetLoggingSeverityLevel(const OrtLogger* logger, OrtLoggingLevel* out) { *out = logger->level; }

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
  std::shared_ptr<GivenThreads> threads = threads_of(*tp_options);
  CreateEnvWithCustomLogger(logging_function, logger_param, log_severity_level, logid, out);
  (*out)->shared_threads = *tp_options;
  (*out)->given_threads = std::move(threads);
}

void CreateEnvWithGlobalThreadPools(OrtLoggingLevel log_severity_level, const char* logid,
                                    const OrtThreadingOptions* tp_options, OrtEnv** out) {
  CreateEnvWithCustomLoggerAndGlobalThreadPools(nullptr, nullptr, log_severity_level, logid, tp_options, out);
}

void CreateEnvWithOptions(const OrtEnvCreationOptions* options, OrtEnv** out) {
  constexpr uint32_t kFirstVersion = 24;
  require(options->version >= kFirstVersion, ErrorCode::kInvalidArgument, "the version of the settings is ",
          options->version, ", expected the ORT_API_VERSION of a header, ", kFirstVersion, " or later");
  require(options->log_id != nullptr, ErrorCode::kInvalidArgument, "log_id is null, expected a name");
  const auto severity = static_cast<OrtLoggingLevel>(options->logging_severity_level);
  if (options->threading_options)
    CreateEnvWithCustomLoggerAndGlobalThreadPools(options->custom_logging_function,
                                                  options->custom_logging_param, severity, options->log_id,
                                                  options->threading_options, out);
  else
    CreateEnvWithCustomLogger(options->custom_logging_function, options->custom_logging_param, severity,
                              options->log_id, out);
}

void CreateThreadingOptions(OrtThreadingOptions** out) { *out = new OrtThreadingOptions; }

void SetGlobalIntraOpNumThreads(OrtThreadingOptions* tp_options, int intra_op_num_threads) {
  check_threads(intra_op_num_threads);
  tp_options->intra_op_threads = intra_op_num_threads;
}
void SetGlobalInterOpNumThreads(OrtThreadingOptions*, int inter_op_num_threads) {
  check_threads(inter_op_num_threads);
}
void SetGlobalSpinControl(OrtThreadingOptions* tp_options, int allow_spinning) {
  require(allow_spinning == 0 || allow_spinning == 1, ErrorCode::kInvalidArgument, "allow_spinning is ",
          allow_spinning, ", expected 0 or 1");
  tp_options->allow_spinning = allow_spinning == 1;
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
