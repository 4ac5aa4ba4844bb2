// Values: tensors over their own memory or the caller's, and their types and shapes.
#include <cstring>
#include <utility>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {
namespace {

Shape shape_of(const int64_t* extents, size_t rank) {
  Shape shape(extents, extents + rank);
  for (size_t i = 0; i < rank; ++i)
    require(shape[i] >= 0, ErrorCode::kInvalidArgument, "the shape ", to_string(shape), " has the size ",
            shape[i], " along dimension ", i, ", expected 0 or more");
  return shape;
}

// A tensor over `data`, which `owner` frees; without an owner, the caller does.
OrtValue* view(DType dtype, Shape shape, void* data, size_t bytes, std::shared_ptr<void> owner) {
  Tensor tensor(dtype, std::move(shape), data, std::move(owner));
  require(bytes >= tensor.bytes(), ErrorCode::kInvalidArgument, "a tensor of type ", to_string(dtype),
          " and shape ", to_string(tensor.shape()), " needs ", tensor.bytes(), " bytes, found p_data_len ",
          bytes);
  return new OrtValue{std::move(tensor)};
}

}  // namespace

DType dtype_of(ONNXTensorElementDataType type) {
  const int number = type;
  const bool known = number > 0 && number <= static_cast<int>(DType::kFloat6E3M2);
  require(known && bits_of(static_cast<DType>(number)) > 0, ErrorCode::kNotImplemented,
          "tensors of element type ", number,
          known ? " (" + to_string(static_cast<DType>(number)) + ")" : std::string(), " are not supported");
  return static_cast<DType>(number);
}

OrtTensorTypeAndShapeInfo describe(const Tensor& tensor) {
  return {static_cast<ONNXTensorElementDataType>(tensor.dtype()), tensor.shape(),
          std::vector<std::string>(tensor.shape().size())};
}

namespace {

OrtTensorTypeAndShapeInfo tensor_type_of(const ValueInfo& info) {
  OrtTensorTypeAndShapeInfo out;
  out.type = static_cast<ONNXTensorElementDataType>(info.dtype);
  if (info.dims) {
    for (const Dim& dim : *info.dims) {
      out.dims.push_back(dim.known() ? dim.value : -1);
      out.symbols.push_back(dim.symbol);
    }
  }
  out.has_shape = info.dims.has_value();
  return out;
}

OrtTypeInfo type_of_tensor(OrtTensorTypeAndShapeInfo tensor) {
  OrtTypeInfo type;
  type.tensor = std::move(tensor);
  return type;
}

OrtTypeInfo type_of_sequence(OrtTypeInfo element) {
  OrtTypeInfo type;
  type.kind = ONNX_TYPE_SEQUENCE;
  type.sequence.element = std::make_shared<OrtTypeInfo>(std::move(element));
  return type;
}

OrtTensorTypeAndShapeInfo describe(const OrtStrings& strings) {
  return {ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, strings.shape,
          std::vector<std::string>(strings.shape.size())};
}

const Sequence& sequence_of(const OrtValue& value) {
  const auto* sequence = std::get_if<Sequence>(&value.value);
  require(sequence != nullptr, ErrorCode::kInvalidArgument, "the value is ", ortrain::describe(value.value),
          ", expected a sequence");
  return *sequence;
}

}  // namespace

OrtTypeInfo type_of(const ValueInfo& info) {
  OrtTypeInfo type = type_of_tensor(tensor_type_of(info));
  if (info.is_sequence) type = type_of_sequence(std::move(type));
  if (!info.is_optional) return type;
  OrtTypeInfo optional;
  optional.kind = ONNX_TYPE_OPTIONAL;
  optional.optional.contained = std::make_shared<OrtTypeInfo>(std::move(type));
  return optional;
}

std::vector<std::string> texts(const char* const* names, size_t count) {
  return count == 0 ? std::vector<std::string>() : std::vector<std::string>(names, names + count);
}

const Tensor& tensor_of(const OrtValue& value) {
  require(value.strings == nullptr, ErrorCode::kInvalidArgument,
          "the value is a tensor of strings, expected one of numbers");
  const auto* tensor = std::get_if<Tensor>(&value.value);
  require(tensor != nullptr, ErrorCode::kInvalidArgument, "the value is ", ortrain::describe(value.value),
          ", expected a tensor");
  return *tensor;
}
Tensor& tensor_of(OrtValue& value) { return const_cast<Tensor&>(tensor_of(std::as_const(value))); }

void CreateTensorAsOrtValue(OrtAllocator* allocator, const int64_t* shape, size_t shape_len,
                            ONNXTensorElementDataType type, OrtValue** out) {
  Shape extents = shape_of(shape, shape_len);
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    auto strings = std::make_shared<OrtStrings>();
    strings->elements.resize(static_cast<size_t>(element_count(extents)));
    strings->shape = std::move(extents);
    *out = new OrtValue{Nothing{}, std::move(strings)};
    return;
  }
  *out = new OrtValue{allocate_tensor(allocator, dtype_of(type), extents)};
}

void CreateTensorWithDataAsOrtValue(const OrtMemoryInfo*, void* p_data, size_t p_data_len,
                                    const int64_t* shape, size_t shape_len, ONNXTensorElementDataType type,
                                    OrtValue** out) {
  *out = view(dtype_of(type), shape_of(shape, shape_len), p_data, p_data_len, nullptr);
}

void CreateTensorWithDataAndDeleterAsOrtValue(OrtAllocator* deleter, void* p_data, size_t p_data_len,
                                              const int64_t* shape, size_t shape_len,
                                              ONNXTensorElementDataType type, OrtValue** out) {
  const DType dtype = dtype_of(type);
  Shape extents = shape_of(shape, shape_len);
  // Ownership of the memory passes to the value only when the call succeeds: until then the caller frees it.
  auto armed = std::make_shared<bool>(false);
  std::shared_ptr<void> owner(p_data, [deleter, armed](void* p) {
    if (*armed) deleter->Free(deleter, p);
  });
  *out = view(dtype, std::move(extents), p_data, p_data_len, std::move(owner));
  *armed = true;
}

void IsTensor(const OrtValue* value, int* out) {
  *out = value->strings || std::holds_alternative<Tensor>(value->value);
}
void HasValue(const OrtValue* value, int* out) {
  *out = value->strings || !std::holds_alternative<Nothing>(value->value);
}
void IsSparseTensor(const OrtValue*, int* out) { *out = 0; }
void GetTensorMutableData(OrtValue* value, void** out) { *out = tensor_of(*value).raw(); }
void GetTensorData(const OrtValue* value, const void** out) { *out = tensor_of(*value).raw(); }
void GetTensorSizeInBytes(const OrtValue* ort_value, size_t* size) { *size = tensor_of(*ort_value).bytes(); }
void GetTensorMemoryInfo(const OrtValue* value, const OrtMemoryInfo** mem_info) {
  tensor_of(*value);
  *mem_info = &cpu_memory();
}
void GetValueType(const OrtValue* value, ONNXType* out) {
  const bool is_tensor = value->strings || std::holds_alternative<Tensor>(value->value);
  *out = is_tensor                                        ? ONNX_TYPE_TENSOR
         : std::holds_alternative<Sequence>(value->value) ? ONNX_TYPE_SEQUENCE
                                                          : ONNX_TYPE_OPTIONAL;
}

void CreateValue(const OrtValue* const* in, size_t num_values, ONNXType value_type, OrtValue** out) {
  require(value_type == ONNX_TYPE_SEQUENCE, ErrorCode::kNotImplemented, "values of kind ",
          static_cast<int>(value_type), " cannot be created from others, expected ONNX_TYPE_SEQUENCE");
  std::vector<Tensor> elements;
  for (size_t i = 0; i < num_values; ++i) elements.push_back(tensor_of(*in[i]));
  *out = new OrtValue{Sequence(elements.empty() ? DType::kUndefined : elements[0].dtype(), elements)};
}

void GetValueCount(const OrtValue* value, size_t* out) { *out = sequence_of(*value).size(); }

void GetValue(const OrtValue* value, int index, OrtAllocator* allocator, OrtValue** out) {
  const Sequence& sequence = sequence_of(*value);
  require(index >= 0 && static_cast<size_t>(index) < sequence.size(), ErrorCode::kInvalidArgument,
          "there is no element with index ", index, ", expected an index below ", sequence.size());
  const Tensor& element = sequence.at(static_cast<size_t>(index));
  Tensor copy = allocate_tensor(allocator, element.dtype(), element.shape());
  copy.copy_from(element);
  *out = new OrtValue{std::move(copy)};
}

void TensorAt(OrtValue* value, const int64_t* location_values, size_t location_values_count, void** out) {
  const Tensor& tensor = tensor_of(*value);
  const Shape& shape = tensor.shape();
  require(location_values_count == shape.size(), ErrorCode::kInvalidArgument, "expected ", shape.size(),
          " indices for a tensor of shape ", to_string(shape), ", found ", location_values_count);
  int64_t offset = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    require(location_values[i] >= 0 && location_values[i] < shape[i], ErrorCode::kInvalidArgument,
            "the index ", location_values[i], " along dimension ", i, " is out of range for the shape ",
            to_string(shape));
    offset = offset * shape[i] + location_values[i];
  }
  const DType dtype = tensor.dtype();
  require(!is_packed(dtype), ErrorCode::kInvalidArgument, "an element of type ", to_string(dtype), " takes ",
          bits_of(dtype), " bits and has no address of its own; read the tensor's data as a whole");
  *out = tensor.raw() + static_cast<size_t>(offset) * size_of(dtype);
}

void GetTypeInfo(const OrtValue* value, OrtTypeInfo** out) {
  if (value->strings) {
    *out = new OrtTypeInfo(type_of_tensor(describe(*value->strings)));
    return;
  }
  if (const auto* sequence = std::get_if<Sequence>(&value->value)) {
    *out = new OrtTypeInfo(type_of({"", sequence->dtype(), std::nullopt, true}));
    return;
  }
  require(std::holds_alternative<Tensor>(value->value), ErrorCode::kInvalidArgument,
          "an empty optional value has no type");
  *out = new OrtTypeInfo(type_of_tensor(describe(tensor_of(*value))));
}

void GetTensorTypeAndShape(const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
  *out =
      new OrtTensorTypeAndShapeInfo(value->strings ? describe(*value->strings) : describe(tensor_of(*value)));
}

void CopyTensors(const OrtEnv*, const OrtValue* const* src_tensors, OrtValue* const* dst_tensors,
                 OrtSyncStream* stream, size_t num_tensors) {
  require(stream == nullptr, ErrorCode::kInvalidArgument, "expected no stream, because the CPU has none");
  for (size_t i = 0; i < num_tensors; ++i) {
    const Tensor& from = tensor_of(*src_tensors[i]);
    const Tensor& to = tensor_of(*dst_tensors[i]);
    require(from.dtype() == to.dtype() && from.shape() == to.shape(), ErrorCode::kInvalidArgument, "tensor ",
            i, ": expected ", to_string(to.dtype()), to_string(to.shape()), ", found ",
            to_string(from.dtype()), to_string(from.shape()));
  }
  for (size_t i = 0; i < num_tensors; ++i) {
    const Tensor& to = tensor_of(*dst_tensors[i]);
    if (to.bytes() > 0) std::memmove(to.raw(), tensor_of(*src_tensors[i]).raw(), to.bytes());
  }
}

void CastTypeInfoToTensorInfo(const OrtTypeInfo* type_info, const OrtTensorTypeAndShapeInfo** out) {
  *out = type_info->kind == ONNX_TYPE_TENSOR ? &type_info->tensor : nullptr;
}
void CastTypeInfoToSequenceTypeInfo(const OrtTypeInfo* type_info, const OrtSequenceTypeInfo** out) {
  *out = type_info->kind == ONNX_TYPE_SEQUENCE ? &type_info->sequence : nullptr;
}
void GetSequenceElementType(const OrtSequenceTypeInfo* sequence_type_info, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(*sequence_type_info->element);
}
void CastTypeInfoToOptionalTypeInfo(const OrtTypeInfo* type_info, const OrtOptionalTypeInfo** out) {
  *out = type_info->kind == ONNX_TYPE_OPTIONAL ? &type_info->optional : nullptr;
}
void GetOptionalContainedTypeInfo(const OrtOptionalTypeInfo* optional_type_info, OrtTypeInfo** out) {
  *out = new OrtTypeInfo(*optional_type_info->contained);
}
void GetOnnxTypeFromTypeInfo(const OrtTypeInfo* type_info, ONNXType* out) { *out = type_info->kind; }

void CreateTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo** out) { *out = new OrtTensorTypeAndShapeInfo; }
void SetTensorElementType(OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType type) {
  info->type = type;
}
void SetDimensions(OrtTensorTypeAndShapeInfo* info, const int64_t* dim_values, size_t dim_count) {
  info->dims.assign(dim_values, dim_values + dim_count);
  info->has_shape = true;
  info->symbols.assign(dim_count, "");
}
void GetTensorElementType(const OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType* out) {
  *out = info->type;
}
bool TensorTypeAndShape_HasShape(const OrtTensorTypeAndShapeInfo* info) {
  return info != nullptr && info->has_shape;
}
void GetDimensionsCount(const OrtTensorTypeAndShapeInfo* info, size_t* out) { *out = info->dims.size(); }
void GetDimensions(const OrtTensorTypeAndShapeInfo* info, int64_t* dim_values, size_t dim_values_length) {
  for (size_t i = 0; i < dim_values_length && i < info->dims.size(); ++i) dim_values[i] = info->dims[i];
}
void GetSymbolicDimensions(const OrtTensorTypeAndShapeInfo* info, const char* dim_params[],
                           size_t dim_params_length) {
  for (size_t i = 0; i < dim_params_length && i < info->symbols.size(); ++i)
    dim_params[i] = info->symbols[i].c_str();
}
void SetSymbolicDimensions(OrtTensorTypeAndShapeInfo* info, const char* dim_params[],
                           size_t dim_params_length) {
  require(dim_params_length == info->dims.size(), ErrorCode::kInvalidArgument, "expected ", info->dims.size(),
          " names, one per dimension, found ", dim_params_length);
  info->symbols.assign(dim_params, dim_params + dim_params_length);
}
void GetTensorShapeElementCount(const OrtTensorTypeAndShapeInfo* info, size_t* out) {
  *out = static_cast<size_t>(element_count(shape_of(info->dims.data(), info->dims.size())));
}

}  // namespace ortrain::capi
