// Errors of the core: one exception type that carries a code and a message.
#pragma once

#include <concepts>
#include <cstdarg>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ortrain {

// The numbers are those of OrtErrorCode, so that the C interface can pass them on unchanged.
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

// A number with its noun as a part of a message: "1 value", "3 values". The noun is the singular.
struct Counted {
  int64_t count;
  const char* noun;
};
constexpr Counted counted(std::integral auto count, const char* noun) {
  return {static_cast<int64_t>(count), noun};
}

// The verb for a number of things, such as "is" or "are".
constexpr const char* agreeing(std::integral auto count, const char* one, const char* several) {
  return count == 1 ? one : several;
}

// The parts of a message pass through variadic functions, so that no code is generated for each combination
// of their types. `kinds` has a character for each part: 's' for the address of a std::string, 'v' for the
// address of a std::string_view, 'n' for the address of a Counted, 'z' for characters that end with zero, 'c'
// for a character, 'i' for an int64_t, 'u' for a uint64_t, 'd' for a double.
std::string concat_parts(const char* kinds, ...);
std::string concat_list(const char* kinds, va_list parts);
[[noreturn]] void fail_with(ErrorCode code, const char* kinds, ...);

// Types that refer to a string. A type that makes a new string, such as a path, is none: the string would not
// outlive the call.
template <typename T>
concept RefersToString = std::same_as<T, std::string> || requires(const T& part) {
  part.operator const std::string&();
};

template <typename T>
constexpr char kind_of_part() {
  if constexpr (std::same_as<T, std::string_view>)
    return 'v';
  else if constexpr (std::same_as<T, Counted>)
    return 'n';
  else if constexpr (std::convertible_to<const T&, const char*>)
    return 'z';
  else if constexpr (RefersToString<T>)
    return 's';
  else if constexpr (std::same_as<T, char>)
    return 'c';
  else if constexpr (std::integral<T>)
    return std::is_signed_v<T> ? 'i' : 'u';
  else
    return 'd';
}

template <char... kinds>
inline constexpr char kKinds[] = {kinds..., '\0'};
template <typename... Parts>
inline constexpr const char* kKindsOf = kKinds<kind_of_part<Parts>()...>;

// The argument that a variadic function receives for a part, which must outlive the call.
template <typename T>
auto passed_part(const T& part) {
  constexpr char kind = kind_of_part<T>();
  if constexpr (kind == 'v' || kind == 'n')
    return &part;
  else if constexpr (kind == 'z')
    return static_cast<const char*>(part);
  else if constexpr (kind == 's')
    return &static_cast<const std::string&>(part);
  else if constexpr (kind == 'c')
    return static_cast<int>(part);
  else if constexpr (kind == 'i')
    return static_cast<int64_t>(part);
  else if constexpr (kind == 'u')
    return static_cast<uint64_t>(part);
  else
    return double{part};
}

// Joins strings, characters and numbers into one string: concat("expected ", 3, ", found ", n).
// Floating-point numbers have six significant digits.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  return concat_parts(kKindsOf<Parts...>, passed_part(parts)...);
}

// Throws an Error whose message is the concatenation of the parts.
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  fail_with(code, kKindsOf<Parts...>, passed_part(parts)...);
}

// Throws unless `condition` holds.
template <typename... Parts>
void require(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(code, parts...);
}

}  // namespace ortrain
