// Environment: where log messages go.
#include <cstdio>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {

void check_severity(int level, bool allow_inherit) {
  const int least = allow_inherit ? -1 : ORT_LOGGING_LEVEL_VERBOSE;
  require(level >= least && level <= ORT_LOGGING_LEVEL_FATAL, ErrorCode::kInvalidArgument,
          "there is no log severity ", level, ", expected a number between ", least, " and 4");
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

void UpdateEnvWithCustomLogLevel(OrtEnv* ort_env, OrtLoggingLevel log_severity_level) {
  check_severity(log_severity_level, false);
  ort_env->level = log_severity_level;
}

void EnableTelemetryEvents(const OrtEnv*) {}
void DisableTelemetryEvents(const OrtEnv*) {}
void SetLanguageProjection(const OrtEnv*, OrtLanguageProjection) {}

}  // namespace ortrain::capi
