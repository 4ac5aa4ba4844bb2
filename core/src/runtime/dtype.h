// Element types. The values are those of ONNX TensorProto.DataType and of ONNXTensorElementDataType.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "runtime/generated/parts.h"
#include "runtime/half.h"

namespace ortrain {

enum class DType : int32_t {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUInt4 = 21,
  kInt4 = 22,
  kFloat4E2M1 = 23,
  kFloat8E8M0 = 24,
  kUInt2 = 25,
  kInt2 = 26,
  kFloat6E2M3 = 27,
  kFloat6E3M2 = 28,
};

// Bits of one element; 0 for types without a fixed size (strings, undefined).
size_t bits_of(DType dtype);
// Bytes of one element; 0 also for types whose elements are not a whole number of bytes.
inline size_t size_of(DType dtype) { return bits_of(dtype) % 8 == 0 ? bits_of(dtype) / 8 : 0; }
// Whether elements are smaller than a byte: they are then packed without gaps, the first in the lowest bits
// of the first byte.
inline bool is_packed(DType dtype) { return bits_of(dtype) % 8 != 0; }
// Bytes of `count` elements; the last byte may be padded with zero bits.
inline size_t bytes_of(DType dtype, int64_t count) {
  const size_t n = static_cast<size_t>(count), bits = bits_of(dtype);
  return bits % 8 == 0 ? n * (bits / 8) : n / 8 * bits + (n % 8 * bits + 7) / 8;
}

// The name as in NumPy: "float32", "int64", "bool".
std::string to_string(DType dtype);

inline bool is_floating(DType t) {
  return t == DType::kFloat || t == DType::kDouble || t == DType::kFloat16 || t == DType::kBFloat16;
}

inline bool is_half(DType t) { return t == DType::kFloat16 || t == DType::kBFloat16; }

// The type in which operators compute if they have no kernels for a type: float for the 16-bit floats, and
// one byte each for packed elements (integers keep their values, floats their bits). The type itself for all
// others.
DType wide_of(DType dtype);

// The DType of a C++ type.
template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::kFloat;
  else if constexpr (std::is_same_v<T, double>)
    return DType::kDouble;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return DType::kUInt8;
  else if constexpr (std::is_same_v<T, int8_t>)
    return DType::kInt8;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return DType::kUInt16;
  else if constexpr (std::is_same_v<T, int16_t>)
    return DType::kInt16;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return DType::kUInt32;
  else if constexpr (std::is_same_v<T, int32_t>)
    return DType::kInt32;
  else if constexpr (std::is_same_v<T, uint64_t>)
    return DType::kUInt64;
  else if constexpr (std::is_same_v<T, int64_t>)
    return DType::kInt64;
  else if constexpr (std::is_same_v<T, bool>)
    return DType::kBool;
  else if constexpr (std::is_same_v<T, Float16>)
    return DType::kFloat16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return DType::kBFloat16;
  else
    return DType::kUndefined;
}

// The part of the library without which a build has no kernels for a type; a built part without a name if
// every build has them. A value, because gcc compares no addresses in constants with -fsanitize=undefined
// (its bug 71962).
constexpr LibraryPart part_of(DType dtype) {
  switch (dtype) {
    case DType::kDouble:
      return kDoublesPart;
    case DType::kFloat16:
    case DType::kBFloat16:
      return kHalvesPart;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return kSmallIntegersPart;
    default:
      return {true, "", ""};
  }
}

// Whether the build has kernels for T.
template <typename T>
inline constexpr bool kHasKernels = part_of(dtype_of<T>()).is_built;

// Calls f(T{}) with the one of the types Ts that `dtype` denotes. Returns false if it denotes none of them,
// or one that the build has no kernels for.
template <typename... Ts, typename F>
bool visit_types(DType dtype, F&& f) {
  const auto visit = [&]<typename T>(T zero) {
    if constexpr (kHasKernels<T>) {
      if (dtype != dtype_of<T>()) return false;
      f(zero);
      return true;
    } else {
      return false;
    }
  };
  return (visit(Ts{}) || ...);
}

// The same for the floating types that kernels support.
template <typename F>
bool visit_floating(DType dtype, F&& f) {
  return visit_types<float, double>(dtype, f);
}

// The same for all arithmetic types that kernels support (not bool, not the 16-bit floats).
template <typename F>
bool visit_numeric(DType dtype, F&& f) {
  return visit_types<float, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(
      dtype, f);
}

// The same with bool.
template <typename F>
bool visit_numeric_or_bool(DType dtype, F&& f) {
  return visit_types<bool>(dtype, f) || visit_numeric(dtype, f);
}

}  // namespace ortrain
