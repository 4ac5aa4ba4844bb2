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

// Calls f(T{}) with that of the types Ts which `dtype` stands for. Returns false when it stands for none of
// them.
template <typename... Ts, typename F>
bool visit_types(DType dtype, F&& f) {
  return ((dtype == dtype_of<Ts>() && (f(Ts{}), true)) || ...);
}

// The same among the floating types that kernels carry.
template <typename F>
bool visit_floating(DType dtype, F&& f) {
  return visit_types<float, double>(dtype, f);
}

// The same among all arithmetic types that kernels carry (not bool, not the 16-bit floats).
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
