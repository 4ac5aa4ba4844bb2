// Element types. The numbers are those of ONNX TensorProto.DataType and of ONNXTensorElementDataType.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

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
};

// Bytes of one element; 0 for types without a fixed size (strings, undefined).
size_t size_of(DType dtype);

// The name that ONNX and NumPy users know: "float32", "int64", "bool".
std::string to_string(DType dtype);

inline bool is_floating(DType t) {
  return t == DType::kFloat || t == DType::kDouble || t == DType::kFloat16 || t == DType::kBFloat16;
}

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
  else
    return DType::kUndefined;
}

// Calls f(T{}) with the C++ type of a floating dtype (float or double). Returns false for other types.
template <typename F>
bool visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat:
      f(float{});
      return true;
    case DType::kDouble:
      f(double{});
      return true;
    default:
      return false;
  }
}

// The same for every arithmetic type that kernels carry (not bool, not the 16-bit floats).
template <typename F>
bool visit_numeric(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat:
      f(float{});
      return true;
    case DType::kDouble:
      f(double{});
      return true;
    case DType::kInt8:
      f(int8_t{});
      return true;
    case DType::kInt16:
      f(int16_t{});
      return true;
    case DType::kInt32:
      f(int32_t{});
      return true;
    case DType::kInt64:
      f(int64_t{});
      return true;
    case DType::kUInt8:
      f(uint8_t{});
      return true;
    case DType::kUInt16:
      f(uint16_t{});
      return true;
    case DType::kUInt32:
      f(uint32_t{});
      return true;
    case DType::kUInt64:
      f(uint64_t{});
      return true;
    default:
      return false;
  }
}

// The same with bool.
template <typename F>
bool visit_numeric_or_bool(DType dtype, F&& f) {
  if (dtype == DType::kBool) {
    f(bool{});
    return true;
  }
  return visit_numeric(dtype, f);
}

}  // namespace ortrain
