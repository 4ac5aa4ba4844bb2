// The wire format of Protocol Buffers: messages are read into structs and written from them, by tables that
// describe their fields. What is malformed or too deep is rejected as protobuf's own library does it; unknown
// fields are skipped, and not written again.
//
// Why not protobuf's library: even its lite variant has 0.8 MB (Debian 12), which is more than half of a
// library with the operators of one model, every target system would have to build it, and ONNX needs a dozen
// messages. A fuzz target compares this code with protobuf's classes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ortrain::protobuf {

// The most bytes that a message can have.
inline constexpr size_t kMostBytes = std::numeric_limits<int32_t>::max();

// A message inside another one, which may be absent. Reading an absent one gives its defaults.
template <typename M>
class Box {
 public:
  Box() = default;
  Box(const Box& other) : value_(other ? std::make_unique<M>(*other) : nullptr) {}
  Box(Box&&) noexcept = default;
  Box& operator=(Box other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }
  explicit operator bool() const { return value_ != nullptr; }
  const M& operator*() const {
    static const M absent{};
    return value_ ? *value_ : absent;
  }
  const M* operator->() const { return &**this; }
  // Makes the message present, and returns it.
  M& make() {
    if (!value_) value_ = std::make_unique<M>();
    return *value_;
  }

 private:
  std::unique_ptr<M> value_;
};

enum class Kind : uint8_t { kInt32, kInt64, kUInt64, kEnum, kFloat, kDouble, kText, kView, kMessage };
enum class Form : uint8_t { kSingle, kRepeated, kPacked };

struct Type;

// How a field is stored in a struct:
//   T                  single; absent if it is 0 or empty
//   std::optional<T>   single
//   std::vector<T>     repeated
//   Box<M>             a message
// A std::string_view is bytes in what was read, which has to live as long.
struct Field {
  uint32_t number;
  Kind kind;
  Form form;
  const Type* type = nullptr;              // of messages
  bool (*known)(int32_t value) = nullptr;  // whether an enum has the value; others count as unknown fields
  // Adds elements, of which a field that is not repeated has one, and returns the first. Null: the field is
  // not stored, but what it holds must be well-formed.
  void* (*add)(void* message, size_t count) = nullptr;
  size_t (*count)(const void* message) = nullptr;
  // Scalars follow each other from the first.
  const void* (*get)(const void* message, size_t index) = nullptr;
};

// A message: its fields in the order of their numbers.
struct Type {
  static constexpr uint32_t kNumbers = 32;

  constexpr Type() = default;
  template <size_t N>
  constexpr explicit Type(const Field (&all)[N]) : fields(all), size(N) {
    for (size_t i = 0; i < N; ++i) places[all[i].number] = static_cast<uint8_t>(i + 1);
  }
  const Field* find(uint32_t number) const {
    return number < kNumbers && places[number] > 0 ? &fields[places[number] - 1] : nullptr;
  }

  const Field* fields = nullptr;
  size_t size = 0;
  std::array<uint8_t, kNumbers> places = {};  // by number: 1 + the index of the field
};

namespace inner {

template <typename T>
struct Stored {
  using Element = T;
  static void* add(T& to, size_t) { return &to; }
  static size_t count(const T& of) { return of == T{} ? 0 : 1; }
  static const void* get(const T& of, size_t) { return &of; }
};
template <typename T>
struct Stored<std::optional<T>> {
  using Element = T;
  static void* add(std::optional<T>& to, size_t) { return &to.emplace(); }
  static size_t count(const std::optional<T>& of) { return of ? 1 : 0; }
  static const void* get(const std::optional<T>& of, size_t) { return &*of; }
};
template <typename T>
struct Stored<std::vector<T>> {
  using Element = T;
  static void* add(std::vector<T>& to, size_t count) {
    const size_t before = to.size();
    to.resize(before + count);
    return to.data() + before;
  }
  static size_t count(const std::vector<T>& of) { return of.size(); }
  static const void* get(const std::vector<T>& of, size_t index) { return &of[index]; }
};
template <typename M>
struct Stored<Box<M>> {
  using Element = M;
  static void* add(Box<M>& to, size_t) { return &to.make(); }
  static size_t count(const Box<M>& of) { return of ? 1 : 0; }
  static const void* get(const Box<M>& of, size_t) { return &*of; }
};

template <typename T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, int32_t>) return Kind::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return Kind::kInt64;
  if constexpr (std::is_same_v<T, uint64_t>) return Kind::kUInt64;
  if constexpr (std::is_same_v<T, float>) return Kind::kFloat;
  if constexpr (std::is_same_v<T, double>) return Kind::kDouble;
  if constexpr (std::is_same_v<T, std::string>) return Kind::kText;
  if constexpr (std::is_same_v<T, std::string_view>) return Kind::kView;
  if constexpr (std::is_enum_v<T>) return Kind::kEnum;
  return Kind::kMessage;
}

template <typename M, typename T>
M message_of(T M::*);
template <typename M, typename T>
T stored_of(T M::*);

}  // namespace inner

// The field that a member stores. Enums have a function is_known(value).
template <auto Member>
constexpr Field field(uint32_t number) {
  using M = decltype(inner::message_of(Member));
  using T = decltype(inner::stored_of(Member));
  using S = inner::Stored<T>;
  using E = typename S::Element;
  Field f{number, inner::kind_of<E>(), std::is_same_v<T, std::vector<E>> ? Form::kRepeated : Form::kSingle};
  if constexpr (inner::kind_of<E>() == Kind::kMessage) f.type = &E::kType;
  if constexpr (std::is_enum_v<E>) f.known = [](int32_t value) { return is_known(static_cast<E>(value)); };
  f.add = [](void* m, size_t count) { return S::add(static_cast<M*>(m)->*Member, count); };
  f.count = [](const void* m) { return S::count(static_cast<const M*>(m)->*Member); };
  f.get = [](const void* m, size_t index) { return S::get(static_cast<const M*>(m)->*Member, index); };
  return f;
}

// A repeated field of numbers that is written without a tag for each. Both forms are read.
template <auto Member>
constexpr Field packed(uint32_t number) {
  Field f = field<Member>(number);
  f.form = Form::kPacked;
  return f;
}

// One of several fields of which a message has at most one: M::clear_value() removes it.
template <auto Member>
constexpr Field one_of(uint32_t number) {
  using M = decltype(inner::message_of(Member));
  using S = inner::Stored<decltype(inner::stored_of(Member))>;
  Field f = field<Member>(number);
  f.add = [](void* m, size_t count) {
    M& message = *static_cast<M*>(m);
    if (S::count(message.*Member) == 0) message.clear_value();  // a message that comes twice is merged
    return S::add(message.*Member, count);
  };
  return f;
}

// A message that is not stored.
constexpr Field checked(uint32_t number, const Type& type) {
  return {number, Kind::kMessage, Form::kSingle, &type};
}
// Repeated numbers that are not stored.
constexpr Field checked_numbers(uint32_t number) { return {number, Kind::kInt64, Form::kRepeated}; }

// Reads a message. False if the bytes are not one, or if messages are nested too deeply.
bool read(std::string_view bytes, const Type& type, void* message);

// The number of bytes that write() returns.
size_t size(const Type& type, const void* message);
// The serialized message, which has no more than kMostBytes.
std::string write(const Type& type, const void* message);
// The same in parts, which `put` receives in order.
using Put = std::function<void(const void* data, size_t bytes)>;
void write(const Type& type, const void* message, const Put& put);

}  // namespace ortrain::protobuf
