// Status: the outcome of a call.
#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"

namespace ortrain::capi {
namespace {

OrtStatus* no_memory_status() {
  static OrtStatus status{ORT_FAIL, "out of memory"};
  return &status;
}

}  // namespace

OrtStatus* make_status(OrtErrorCode code, const std::string& message) noexcept {
  try {
    return new OrtStatus{code, message};
  } catch (...) {
    return no_memory_status();
  }
}

void release(OrtStatus* status) noexcept {
  if (status != no_memory_status()) delete status;
}

OrtStatus* CreateStatus(OrtErrorCode code, const char* msg) { return make_status(code, msg ? msg : ""); }

OrtErrorCode GetErrorCode(const OrtStatus* status) { return status ? status->code : ORT_OK; }

const char* GetErrorMessage(const OrtStatus* status) { return status ? status->message.c_str() : ""; }

}  // namespace ortrain::capi
