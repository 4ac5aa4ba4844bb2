// Values: tensors over their own memory or the caller's, and their types and shapes.
#include <cstring>
#include <utility>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "runtime/convert.h"
#include "runtime/text_tensor.h"

namespace ortrain::capi {
namespace {

Shape shape_of(const int64_t* dims, size_t rank) {
  Shape shape(dims, dims + rank);
  for (size_t i = 0; i < rank; ++i)
    require(shape[i] >= 0, ErrorCode::kInvalidArgument, "the shape ", to_string(shape), " has the size ",
            shape[i], " along dimension ", i, ", expected 0 or more");
  return shape;
}

// A tensor of the strings in an array of the caller, which are std::string.
Tensor view_of_strings(Shape shape, void* data, std::shared_ptr<void> owner) {
  struct Places {
    std::vector<Text> texts;
    std::shared_ptr<void> owner;
  };
  auto places = std::make_shared<Places>(Places{{}, std::move(owner)});
  const auto* strings = static_cast<const std::string*>(data);
  for (int64_t i = 0; i < element_count(shape); ++i) places->texts.push_back(strings + i);
  void* first = places->texts.data();
  return Tensor(DType::kString, std::move(shape), first, std::move(places));
}

// Where an allocator takes its memory from, if it says so.
std::optional<OrtMemoryInfo> memory_of(const OrtAllocator& allocator) {
  const OrtMemoryInfo* info = allocator.Info == nullptr ? nullptr : allocator.Info(&allocator);
  return info == nullptr ? std::nullopt : std::optional(*info);
}

// A tensor over `data`, which `owner` frees; without an owner, the caller does.
OrtValue* view(DType dtype, Shape shape, void* data, size_t bytes, std::shared_ptr<void> owner,
               std::optional<OrtMemoryInfo> memory) {
  const auto count = static_cast<size_t>(element_count(shape));
  size_t needed = bytes_of(dtype, static_cast<int64_t>(count));
  if (dtype == DType::kString && __builtin_mul_overflow(count, sizeof(std::string), &needed))
    needed = SIZE_MAX;
  require(bytes >= needed, ErrorCode::kInvalidArgument, "a tensor of type ", to_string(dtype), " and shape ",
          to_string(shape), " needs ", counted(needed, "byte"), ", found p_data_len ", bytes);
  Tensor tensor = dtype == DType::kString ? view_of_strings(std::move(shape), data, std::move(owner))
                                          : Tensor(dtype, std::move(shape), data, std::move(owner));
  return new OrtValue{std::move(tensor), nullptr, nullptr, std::move(memory)};
}

}  // namespace

DType any_dtype_of(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2:
      return DType::kUInt2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2:
      return DType::kInt2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0:
      return DType::kFloat8E8M0;
    default:
      return static_cast<DType>(type);
  }
}

ONNXTensorElementDataType element_type_of(DType dtype) {
  switch (dtype) {
    case DType::kUInt2:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2;
    case DType::kInt2:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2;
    case DType::kFloat8E8M0:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0;
    default:
      return static_cast<ONNXTensorElementDataType>(dtype);
  }
}

DType dtype_of(ONNXTensorElementDataType type) {
  const int number = type;
  const bool known = number > 0 && number <= static_cast<int>(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT6E3M2);
  const DType dtype = any_dtype_of(type);
  require(known && bits_of(dtype) > 0, ErrorCode::kNotImplemented, "tensors of element type ", number,
          known ? " (" + to_string(dtype) + ")" : std::string(), " are not supported");
  return dtype;
}

OrtTensorTypeAndShapeInfo describe(const Tensor& tensor) {
  return {element_type_of(tensor.dtype()), tensor.shape(), std::vector<std::string>(tensor.shape().size())};
}
OrtTensorTypeAndShapeInfo describe(const OrtSparseTensor& tensor) {
  return {element_type_of(tensor.dtype), tensor.shape, std::vector<std::string>(tensor.shape.size())};
}

namespace {

OrtTensorTypeAndShapeInfo tensor_type_of(const ValueInfo& info) {
  OrtTensorTypeAndShapeInfo out;
  out.type = element_type_of(info.dtype);
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

const Sequence& sequence_of(const OrtValue& value) {
  const auto* sequence = std::get_if<Sequence>(&value.value);
  require(sequence != nullptr, ErrorCode::kInvalidArgument, "the value is ", ortrain::describe(value.value),
          ", expected a sequence");
  return *sequence;
}

// A tensor whose elements are bytes that a caller may see.
const Tensor& numbers_of(const OrtValue& value) {
  const Tensor& tensor = tensor_of(value);
  require(tensor.dtype() != DType::kString, ErrorCode::kInvalidArgument,
          "the value is a tensor of strings, expected one of numbers");
  return tensor;
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

OrtTypeInfo type_of_sparse(const ValueInfo& info) {
  OrtTypeInfo type = type_of_tensor(tensor_type_of(info));
  type.kind = ONNX_TYPE_SPARSETENSOR;
  return type;
}

OrtTypeInfo type_of(const MapType& type) {
  OrtTypeInfo map;
  map.kind = ONNX_TYPE_MAP;
  map.map.key = element_type_of(type.key);
  map.map.value = std::make_shared<OrtTypeInfo>(
      type_of_tensor(tensor_type_of({"", type.value, std::vector<Dim>{}, false})));
  return type.in_sequence ? type_of_sequence(std::move(map)) : map;
}

const Tensor& tensor_of(const OrtValue& value) {
  require(value.maps == nullptr, ErrorCode::kInvalidArgument, "the value is a map, expected a tensor");
  require(value.sparse == nullptr, ErrorCode::kRuntimeException,
          "the value is a sparse tensor, expected a tensor with all elements");
  const auto* tensor = std::get_if<Tensor>(&value.value);
  require(tensor != nullptr, ErrorCode::kInvalidArgument, "the value is ", ortrain::describe(value.value),
          ", expected a tensor");
  return *tensor;
}
Tensor& tensor_of(OrtValue& value) { return const_cast<Tensor&>(tensor_of(std::as_const(value))); }

void CreateTensorAsOrtValue(OrtAllocator* allocator, const int64_t* shape, size_t shape_len,
                            ONNXTensorElementDataType type, OrtValue** out) {
  Shape dims = shape_of(shape, shape_len);
  *out =
      new OrtValue{allocate_tensor(allocator, dtype_of(type), dims), nullptr, nullptr, memory_of(*allocator)};
}

void CreateTensorWithDataAsOrtValue(const OrtMemoryInfo* info, void* p_data, size_t p_data_len,
                                    const int64_t* shape, size_t shape_len, ONNXTensorElementDataType type,
                                    OrtValue** out) {
  *out = view(dtype_of(type), shape_of(shape, shape_len), p_data, p_data_len, nullptr, *info);
}

void CreateTensorWithDataAndDeleterAsOrtValue(OrtAllocator* deleter, void* p_data, size_t p_data_len,
                                              const int64_t* shape, size_t shape_len,
                                              ONNXTensorElementDataType type, OrtValue** out) {
  const DType dtype = dtype_of(type);
  Shape dims = shape_of(shape, shape_len);
  // Ownership of the memory passes to the value only when the call succeeds: until then the caller frees it.
  auto armed = std::make_shared<bool>(false);
  std::shared_ptr<void> owner(p_data, [deleter, armed](void* p) {
    if (*armed) deleter->Free(deleter, p);
  });
  *out = view(dtype, std::move(dims), p_data, p_data_len, std::move(owner), memory_of(*deleter));
  *armed = true;
}

void IsTensor(const OrtValue* value, int* out) { *out = std::holds_alternative<Tensor>(value->value); }
void IsSparseTensor(const OrtValue* value, int* out) { *out = value->sparse != nullptr; }
void HasValue(const OrtValue* value, int* out) {
  *out = value->maps || value->sparse || !std::holds_alternative<Nothing>(value->value);
}
void GetTensorMutableData(OrtValue* value, void** out) { *out = numbers_of(*value).raw(); }
void GetTensorData(const OrtValue* value, const void** out) { *out = numbers_of(*value).raw(); }
void GetTensorSizeInBytes(const OrtValue* ort_value, size_t* size) {
  require(ort_value->sparse == nullptr, ErrorCode::kInvalidArgument,
          "the value is a sparse tensor, expected a tensor with all elements");
  *size = numbers_of(*ort_value).bytes();
}
void GetTensorMemoryInfo(const OrtValue* value, const OrtMemoryInfo** mem_info) {
  tensor_of(*value);
  *mem_info = value->memory ? &*value->memory : &cpu_memory();
}
void GetValueType(const OrtValue* value, ONNXType* out) {
  const bool is_tensor = std::holds_alternative<Tensor>(value->value);
  *out = value->maps     ? (value->maps->type.in_sequence ? ONNX_TYPE_SEQUENCE : ONNX_TYPE_MAP)
         : value->sparse ? ONNX_TYPE_SPARSETENSOR
         : is_tensor     ? ONNX_TYPE_TENSOR
         : std::holds_alternative<Sequence>(value->value) ? ONNX_TYPE_SEQUENCE
                                                          : ONNX_TYPE_OPTIONAL;
}

void CreateValue(const OrtValue* const* in, size_t num_values, ONNXType value_type, OrtValue** out) {
  if (value_type == ONNX_TYPE_MAP) {
    require(num_values == 2, ErrorCode::kFail, "a map is made of keys and values, found ",
            counted(num_values, "value"), ", expected 2");
    auto maps = std::make_shared<OrtMaps>();
    maps->maps.push_back(make_map(tensor_of(*in[0]), tensor_of(*in[1])));
    maps->type = {maps->maps[0].keys.dtype(), maps->maps[0].values.dtype(), false};
    *out = new OrtValue{Nothing{}, std::move(maps)};
    return;
  }
  require(value_type == ONNX_TYPE_SEQUENCE, ErrorCode::kNotImplemented, "values of kind ",
          static_cast<int>(value_type),
          " cannot be created from others, expected ONNX_TYPE_SEQUENCE or ONNX_TYPE_MAP");
  if (num_values > 0 && in[0]->maps) {
    auto maps = std::make_shared<OrtMaps>();
    maps->type = in[0]->maps->type;
    maps->type.in_sequence = true;
    for (size_t i = 0; i < num_values; ++i) {
      const OrtMaps* one = in[i]->maps.get();
      require(one && !one->type.in_sequence && one->type.key == maps->type.key &&
                  one->type.value == maps->type.value,
              ErrorCode::kFail, "value ", i, " is not a map of the same type as the first");
      maps->maps.push_back(one->maps[0]);
    }
    *out = new OrtValue{Nothing{}, std::move(maps)};
    return;
  }
  std::vector<Tensor> elements;
  for (size_t i = 0; i < num_values; ++i) elements.push_back(tensor_of(*in[i]));
  *out = new OrtValue{Sequence(elements.empty() ? DType::kUndefined : elements[0].dtype(), elements)};
}

void GetValueCount(const OrtValue* value, size_t* out) {
  if (value->maps)
    *out = value->maps->type.in_sequence ? value->maps->maps.size() : 2;  // keys and values
  else
    *out = sequence_of(*value).size();
}

void GetValue(const OrtValue* value, int index, OrtAllocator* allocator, OrtValue** out) {
  size_t count = 0;
  GetValueCount(value, &count);
  const bool is_map = value->maps && !value->maps->type.in_sequence;
  require(index >= 0 && static_cast<size_t>(index) < count,
          is_map ? ErrorCode::kFail : ErrorCode::kInvalidArgument, "there is no element with index ", index,
          ", expected an index below ", count);
  const auto at = static_cast<size_t>(index);
  if (!value->maps) {
    *out = new OrtValue{copy_tensor(allocator, sequence_of(*value).at(at))};
  } else if (value->maps->type.in_sequence) {
    MapType type = value->maps->type;
    type.in_sequence = false;
    *out = new OrtValue{Nothing{}, std::make_shared<OrtMaps>(OrtMaps{type, {value->maps->maps[at]}})};
  } else {
    const OrtMap& map = value->maps->maps[0];
    *out = new OrtValue{copy_tensor(allocator, at == 0 ? map.keys : map.values)};
  }
}

void TensorAt(OrtValue* value, const int64_t* location_values, size_t location_values_count, void** out) {
  const Tensor& tensor = numbers_of(*value);
  const Shape& shape = tensor.shape();
  require(location_values_count == shape.size(), ErrorCode::kInvalidArgument, "expected ",
          counted(shape.size(), "index"), " for a tensor of shape ", to_string(shape), ", found ",
          location_values_count);
  int64_t offset = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    require(location_values[i] >= 0 && location_values[i] < shape[i], ErrorCode::kInvalidArgument,
            "the index ", location_values[i], " along dimension ", i, " is out of range for the shape ",
            to_string(shape));
    offset = offset * shape[i] + location_values[i];
  }
  const DType dtype = tensor.dtype();
  require(!is_packed(dtype), ErrorCode::kInvalidArgument, "an element of type ", to_string(dtype), " takes ",
          bits_of(dtype), " bits and has no separate address; read the tensor's data as a whole");
  *out = tensor.raw() + static_cast<size_t>(offset) * size_of(dtype);
}

void GetTypeInfo(const OrtValue* value, OrtTypeInfo** out) {
  if (value->maps) {
    *out = new OrtTypeInfo(type_of(value->maps->type));
    return;
  }
  if (value->sparse) {
    auto type = std::make_unique<OrtTypeInfo>(type_of_tensor(describe(*value->sparse)));
    type->kind = ONNX_TYPE_SPARSETENSOR;
    *out = type.release();
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
      new OrtTensorTypeAndShapeInfo(value->sparse ? describe(*value->sparse) : describe(tensor_of(*value)));
}

void ConvertFloats(const OrtValue* source, OrtValue* target) {
  const Tensor &from = tensor_of(*source), &to = tensor_of(*target);
  const auto is_half = [](DType t) { return t == DType::kFloat16 || t == DType::kBFloat16; };
  const bool narrows = from.dtype() == DType::kFloat && is_half(to.dtype());
  require(narrows || (is_half(from.dtype()) && to.dtype() == DType::kFloat), ErrorCode::kInvalidArgument,
          "converting floats: expected a tensor of floats and one of float16 or bfloat16, found ",
          to_string(from.dtype()), " and ", to_string(to.dtype()));
  require(from.size() == to.size(), ErrorCode::kInvalidArgument, "converting floats: expected ",
          counted(from.size(), "element"), " in the tensor for the result, found ", to.size());
  if (narrows)
    from_wide(to.dtype(), from.raw(), to.raw(), from.size());
  else
    to_wide(from.dtype(), from.raw(), to.raw(), from.size());
}

void CopyTensors(const OrtEnv*, const OrtValue* const* src_tensors, OrtValue* const* dst_tensors,
                 OrtSyncStream* stream, size_t num_tensors) {
  require(stream == nullptr, ErrorCode::kInvalidArgument, "expected no stream, because the CPU has none");
  for (size_t i = 0; i < num_tensors; ++i) {
    const Tensor& from = numbers_of(*src_tensors[i]);
    const Tensor& to = numbers_of(*dst_tensors[i]);
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
  const bool is_tensor = type_info->kind == ONNX_TYPE_TENSOR || type_info->kind == ONNX_TYPE_SPARSETENSOR;
  *out = is_tensor ? &type_info->tensor : nullptr;
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
void CastTypeInfoToMapTypeInfo(const OrtTypeInfo* type_info, const OrtMapTypeInfo** out) {
  *out = type_info->kind == ONNX_TYPE_MAP ? &type_info->map : nullptr;
}
void GetMapKeyType(const OrtMapTypeInfo* map_type_info, ONNXTensorElementDataType* out) {
  *out = map_type_info->key;
}
void GetMapValueType(const OrtMapTypeInfo* map_type_info, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(*map_type_info->value);
}
void GetDenotationFromTypeInfo(const OrtTypeInfo*, const char** const denotation, size_t* len) {
  *denotation = "";  // denotations are rare in models, so they are not kept
  *len = 0;
}
void GetTensorElementTypeAndShapeDataReference(const OrtValue* value, ONNXTensorElementDataType* elem_type,
                                               const int64_t** shape_data, size_t* shape_data_count) {
  const Tensor& tensor = tensor_of(*value);
  *elem_type = element_type_of(tensor.dtype());
  *shape_data = tensor.shape().data();
  *shape_data_count = tensor.shape().size();
}
void GetOnnxTypeFromTypeInfo(const OrtTypeInfo* type_info, ONNXType* out) { *out = type_info->kind; }

void CreateTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo** out) { *out = new OrtTensorTypeAndShapeInfo; }
void SetTensorElementType(OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType type) {
  info->type = type;
}
void SetDimensions(OrtTensorTypeAndShapeInfo* info, const int64_t* dim_values, size_t dim_count) {
  for (size_t i = 0; i < dim_count; ++i)
    require(dim_values[i] >= -1, ErrorCode::kInvalidArgument, "dimension ", i, " is ", dim_values[i],
            ", expected -1 for one that is not fixed, or a size");
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
  require(dim_params_length == info->dims.size(), ErrorCode::kInvalidArgument, "expected ",
          counted(info->dims.size(), "name"), ", one per dimension, found ", dim_params_length);
  info->symbols.assign(dim_params, dim_params + dim_params_length);
}
void GetTensorShapeElementCount(const OrtTensorTypeAndShapeInfo* info, size_t* out) {
  *out = static_cast<size_t>(element_count(shape_of(info->dims.data(), info->dims.size())));
}

}  // namespace ortrain::capi
