// Errors of the core: one exception type that carries a code and a message.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
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

// A part of a message as text: a view of a string, or the digits of a number (six significant ones if it is
// floating), perhaps with a noun. Messages are built from these in one function instead of one per
// combination of types.
class MessagePart {
 public:
  template <typename T>
  requires std::convertible_to<const T&, std::string_view>
  explicit MessagePart(const T& text) : text_(text) {}
  template <std::integral T>
  explicit MessagePart(T number) {
    if constexpr (std::same_as<T, char>)
      character(number);
    else if constexpr (std::is_signed_v<T>)
      whole(static_cast<int64_t>(number));
    else
      whole(static_cast<uint64_t>(number));
  }
  template <std::floating_point T>
  explicit MessagePart(T number) {
    floating(static_cast<double>(number));
  }
  explicit MessagePart(const Counted& things);
  MessagePart(const MessagePart&) = delete;  // the view may refer to its own digits
  MessagePart& operator=(const MessagePart&) = delete;

  size_t size() const { return text_.size() + (noun_.data() != nullptr) + noun_.size() + ending_.size(); }
  char* copy_to(char* place) const;

 private:
  void character(char c);
  void whole(int64_t number);
  void whole(uint64_t number);
  void floating(double number);

  std::string_view text_, noun_, ending_;
  char digits_[24];
};

std::string concat_parts(std::initializer_list<MessagePart> parts);
[[noreturn]] void fail_with(ErrorCode code, std::initializer_list<MessagePart> parts);

// How a part reaches the functions below: one type for all literals and one for all integers of a sign, so
// that calls with the same kinds of parts share one function.
template <typename T>
struct PassedPart {
  using Type = const T&;
};
template <size_t N>
struct PassedPart<char[N]> {
  using Type = const char*;
};
template <std::integral T>
requires(!std::same_as<T, char>) struct PassedPart<T> {
  using Type = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
};
template <>
struct PassedPart<Counted> {
  using Type = Counted;
};
template <std::floating_point T>
struct PassedPart<T> {
  using Type = double;
};

template <typename... Passed>
[[gnu::noinline]] std::string concat_passed(Passed... parts) {
  return concat_parts({MessagePart(parts)...});
}
template <typename... Passed>
[[noreturn, gnu::noinline]] void fail_passed(ErrorCode code, Passed... parts) {
  fail_with(code, {MessagePart(parts)...});
}

// Joins strings, characters and numbers into one string: concat("expected ", 3, ", found ", n).
template <typename... Parts>
std::string concat(const Parts&... parts) {
  return concat_passed<typename PassedPart<Parts>::Type...>(parts...);
}

// Throws an Error whose message is the concatenation of the parts.
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  fail_passed<typename PassedPart<Parts>::Type...>(code, parts...);
}

// Throws unless `condition` holds.
template <typename... Parts>
void require(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(code, parts...);
}

}  // namespace ortrain
