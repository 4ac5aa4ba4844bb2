#include "runtime/dtype.h"

namespace ortrain {

size_t bits_of(DType dtype) {
  switch (dtype) {
    case DType::kUInt2:
    case DType::kInt2:
      return 2;
    case DType::kUInt4:
    case DType::kInt4:
    case DType::kFloat4E2M1:
      return 4;
    case DType::kFloat6E2M3:
    case DType::kFloat6E3M2:
      return 6;
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0:
      return 8;
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 16;
    case DType::kFloat:
    case DType::kInt32:
    case DType::kUInt32:
      return 32;
    case DType::kDouble:
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kComplex64:
    case DType::kString:  // a pointer: runtime/text_tensor.h
      return 64;
    case DType::kComplex128:
      return 128;
    case DType::kUndefined:
      return 0;
  }
  return 0;
}

DType wide_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return DType::kFloat;
    case DType::kInt4:
    case DType::kInt2:
      return DType::kInt8;
    case DType::kUInt4:
    case DType::kUInt2:
    case DType::kFloat4E2M1:
    case DType::kFloat6E2M3:
    case DType::kFloat6E3M2:
      return DType::kUInt8;
    default:
      return dtype;
  }
}

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::kUndefined:
      return "undefined";
    case DType::kFloat:
      return "float32";
    case DType::kUInt8:
      return "uint8";
    case DType::kInt8:
      return "int8";
    case DType::kUInt16:
      return "uint16";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kString:
      return "string";
    case DType::kBool:
      return "bool";
    case DType::kFloat16:
      return "float16";
    case DType::kDouble:
      return "float64";
    case DType::kUInt32:
      return "uint32";
    case DType::kUInt64:
      return "uint64";
    case DType::kComplex64:
      return "complex64";
    case DType::kComplex128:
      return "complex128";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat8E4M3FN:
      return "float8e4m3fn";
    case DType::kFloat8E4M3FNUZ:
      return "float8e4m3fnuz";
    case DType::kFloat8E5M2:
      return "float8e5m2";
    case DType::kFloat8E5M2FNUZ:
      return "float8e5m2fnuz";
    case DType::kUInt4:
      return "uint4";
    case DType::kInt4:
      return "int4";
    case DType::kFloat4E2M1:
      return "float4e2m1";
    case DType::kFloat8E8M0:
      return "float8e8m0";
    case DType::kUInt2:
      return "uint2";
    case DType::kInt2:
      return "int2";
    case DType::kFloat6E2M3:
      return "float6e2m3";
    case DType::kFloat6E3M2:
      return "float6e3m2";
  }
  return "data type " + std::to_string(static_cast<int>(dtype));
}

}  // namespace ortrain
