// The layer between a slot of a table and its implementation: it checks arguments and turns exceptions into a
// status.
//
// Every slot of every table is a generated function that uses it. A slot without an implementation is an
// instance of one template, which returns ORT_NOT_IMPLEMENTED, names the call and clears its results. No
// slot is null, and no exception leaves the library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "onnxruntime_c_api.h"
#include "runtime/error.h"
#include "runtime/generated/parts.h"

namespace ortrain::capi {

// A new status. If there is no memory even for that, a preallocated one.
OrtStatus* make_status(OrtErrorCode code, const std::string& message) noexcept;

// The status of the exception that is being handled.
OrtStatus* status_of_exception(const char* call) noexcept;

// The status of a call that needs a part of the library that this build leaves out.
OrtStatus* left_out(const char* call, const LibraryPart& part) noexcept;

// Runs `work`; if it throws, returns the reason as a status.
template <typename F>
OrtStatus* guarded(const char* call, F&& work) noexcept {
  try {
    work();
    return nullptr;
  } catch (...) {  // one handler for all exceptions: this code is part of every call
    return status_of_exception(call);
  }
}

// The same for calls that return no status: a failure gives null, 0 or nothing.
template <typename F>
auto quiet(F&& work) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    return decltype(work())();
  }
}

[[noreturn]] void fail_null(const char* name, const char* expected);
inline void check_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr) [[unlikely]]
    fail_null(name, "a pointer");
}
template <typename R, typename... A>
void check_pointer(R (*function)(A...), const char* name) {
  if (function == nullptr) [[unlikely]]
    fail_null(name, "a function");
}

template <typename N>
void check_array(const void* pointer, N length, const char* name, const char* length_name) {
  require(pointer != nullptr || length == 0, ErrorCode::kInvalidArgument, "argument ", name,
          " is null while ", length_name, " is ", length, ", expected a pointer to as many elements");
}

template <typename T, typename N>
void check_elements(T const* const* elements, N length, const char* name, const char* length_name) {
  check_array(elements, length, name, length_name);
  for (N i = 0; elements != nullptr && i < length; ++i)
    require(elements[i] != nullptr, ErrorCode::kInvalidArgument, "argument ", name, "[", i,
            "] is null, expected a pointer");
}

inline void check_allocator(const OrtAllocator* allocator, const char* name) {
  check_pointer(allocator, name);
  require(allocator->Alloc != nullptr && allocator->Free != nullptr, ErrorCode::kInvalidArgument,
          "the allocator ", name, " has no Alloc or no Free, expected both");
}

// The name of a call as a template argument.
template <size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&name)[N]) { std::copy_n(name, N, text); }
};

// The function of a slot without an implementation: it returns ORT_NOT_IMPLEMENTED with its name or, if the
// call returns no status, does nothing and returns null or 0.
template <Name name, typename F>
struct NotImplemented;
template <Name name, typename R, typename... A>
struct NotImplemented<name, R(ORT_API_CALL*)(A...) noexcept> {
  static R ORT_API_CALL call(A... arguments) noexcept {
    if constexpr (std::is_same_v<R, OrtStatus*>) {
      return make_status(ORT_NOT_IMPLEMENTED, std::string(name.text) + " is not implemented in ortrain");
    } else {
      (clear(arguments), ...);
      return R();
    }
  }
  // Sets results to null or 0, so that a caller does not read stale values.
  template <typename T>
  static void clear(T argument) noexcept {
    if constexpr (std::is_pointer_v<T> && !std::is_void_v<std::remove_pointer_t<T>>) {
      using Target = std::remove_pointer_t<T>;
      if constexpr (std::is_pointer_v<Target> && !std::is_const_v<Target>)
        if (argument != nullptr) *argument = nullptr;
      if constexpr (std::is_same_v<Target, size_t>)
        if (argument != nullptr) *argument = 0;
    }
  }
};

}  // namespace ortrain::capi
