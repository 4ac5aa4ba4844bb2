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

OrtStatus* status_of_exception(const char* call) noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return make_status(static_cast<OrtErrorCode>(error.code()), std::string(call) + ": " + error.message());
  } catch (const std::bad_alloc&) {
    return make_status(ORT_FAIL, std::string(call) + ": not enough memory");
  } catch (const std::exception& error) {
    return make_status(ORT_FAIL, std::string(call) + ": " + error.what());
  } catch (...) {
    return make_status(ORT_FAIL, std::string(call) + ": unknown exception");
  }
}

OrtStatus* left_out(const char* call, const LibraryPart& part) noexcept {
  return guarded(call, [&] {
    fail(ErrorCode::kNotImplemented, "this build of the library leaves out ", part.title,
         "; build it with the CMake option ", part.option, "=ON");
  });
}

void expect_ok(OrtStatus* status, const std::string& what) {
  if (status == nullptr) return;
  const auto code = static_cast<ErrorCode>(GetErrorCode(status));
  const std::string message = GetErrorMessage(status);
  release(status);
  fail(code, what, ": ", message);
}

void fail_null(const char* name, const char* expected) {
  fail(ErrorCode::kInvalidArgument, "argument ", name, " is null, expected ", expected);
}

void release(OrtStatus* status) noexcept {
  if (status != no_memory_status()) delete status;
}

OrtStatus* CreateStatus(OrtErrorCode code, const char* msg) { return make_status(code, msg ? msg : ""); }

OrtErrorCode GetErrorCode(const OrtStatus* status) { return status ? status->code : ORT_OK; }

const char* GetErrorMessage(const OrtStatus* status) { return status ? status->message.c_str() : ""; }

}  // namespace ortrain::capi
