// Errors of the core: one exception type that carries a code and a message.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace ortrain {

// The numbers are those of OrtErrorCode, so that the boundary can pass them on unchanged.
enum class ErrorCode : int {
  kOk = 0,
  kFail = 1,
  kInvalidArgument = 2,
  kNoSuchFile = 3,
  kNoModel = 4,
  kEngineError = 5,
  kRuntimeException = 6,
  kInvalidProtobuf = 7,
  kModelLoaded = 8,
  kNotImplemented = 9,
  kInvalidGraph = 10,
  kExecutionProviderFail = 11,
};

class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_;
};

// Joins anything printable into one string: concat("expected ", 3, ", found ", n).
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws an Error whose message is the parts joined.
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

// Throws unless `condition` holds.
template <typename... Parts>
void require(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(code, parts...);
}

}  // namespace ortrain
