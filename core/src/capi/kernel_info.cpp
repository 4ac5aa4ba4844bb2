// Calls with which custom operators ask about their nodes, and the attributes of nodes.
#include <cstring>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "op/dynamic.h"

namespace ortrain::capi {
namespace {

// Copies a text into the caller's memory, or tells how much of it is needed.
void give_text(std::string_view text, char* out, size_t* size) {
  const size_t needed = text.size() + 1, room = *size;
  *size = needed;
  if (out == nullptr) return;
  require(room >= needed, ErrorCode::kInvalidArgument, "the text needs ", counted(needed, "byte"),
          ", found room for ", room);
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
}

template <typename T>
void give_list(const std::vector<T>& list, T* out, size_t* size) {
  const size_t room = *size;
  *size = list.size();
  if (out == nullptr) return;
  require(room >= list.size(), ErrorCode::kInvalidArgument, "the attribute has ",
          counted(list.size(), "element"), ", found room for ", room);
  std::copy(list.begin(), list.end(), out);
}

template <typename T>
const T& attribute(const OrtKernelInfo& info, const char* name) {
  const auto found = info.node.attributes.find(name);
  require(found != info.node.attributes.end(), ErrorCode::kFail, info.node.label(),
          ": there is no attribute '", name, "'");
  const T* value = std::get_if<T>(&found->second);
  require(value != nullptr, ErrorCode::kFail, info.node.label(), ": the attribute '", name,
          "' has another type");
  return *value;
}

// A list; an empty one has no type.
template <typename T>
std::vector<T> list_attribute(const OrtKernelInfo& info, const char* name) {
  const auto found = info.node.attributes.find(name);
  if (found != info.node.attributes.end())
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&found->second); ints && ints->empty())
      return {};
  return attribute<std::vector<T>>(info, name);
}

const ValueInfo& at(const std::vector<ValueInfo>& values, size_t index, const char* what) {
  return item(values, index, what);
}

// An input or output that the node has; throws for an optional one that the node leaves out.
const ValueInfo& given(const std::vector<ValueInfo>& values, size_t index, const char* what) {
  const ValueInfo& value = at(values, index, what);
  require(!value.name.empty(), ErrorCode::kInvalidGraph, "the node omits its optional ", what, " ", index,
          ", which therefore has no type");
  return value;
}

}  // namespace

void KernelInfoGetAttribute_float(const OrtKernelInfo* info, const char* name, float* out) {
  *out = attribute<float>(*info, name);
}
void KernelInfoGetAttribute_int64(const OrtKernelInfo* info, const char* name, int64_t* out) {
  *out = attribute<int64_t>(*info, name);
}
void KernelInfoGetAttribute_string(const OrtKernelInfo* info, const char* name, char* out, size_t* size) {
  give_text(attribute<std::string>(*info, name), out, size);
}
void KernelInfoGetAttributeArray_float(const OrtKernelInfo* info, const char* name, float* out,
                                       size_t* size) {
  give_list(list_attribute<float>(*info, name), out, size);
}
void KernelInfoGetAttributeArray_int64(const OrtKernelInfo* info, const char* name, int64_t* out,
                                       size_t* size) {
  give_list(attribute<std::vector<int64_t>>(*info, name), out, size);
}
void KernelInfoGetAttributeArray_string(const OrtKernelInfo* info, const char* name, OrtAllocator* allocator,
                                        char*** out, size_t* size) {
  const std::vector<std::string> list = list_attribute<std::string>(*info, name);
  *size = list.size();
  *out = nullptr;
  if (list.empty()) return;
  char** texts = static_cast<char**>(allocate(allocator, list.size() * sizeof(char*)));
  for (size_t i = 0; i < list.size(); ++i) texts[i] = copy_text(allocator, list[i]);
  *out = texts;
}
void KernelInfoGetAttribute_tensor(const OrtKernelInfo* info, const char* name, OrtAllocator* allocator,
                                   OrtValue** out) {
  *out = new OrtValue{copy_tensor(allocator, attribute<Tensor>(*info, name))};
}

void KernelInfo_GetInputCount(const OrtKernelInfo* info, size_t* out) { *out = info->node.inputs.size(); }
void KernelInfo_GetOutputCount(const OrtKernelInfo* info, size_t* out) { *out = info->node.outputs.size(); }
void KernelInfo_GetInputName(const OrtKernelInfo* info, size_t index, char* out, size_t* size) {
  give_text(at(info->inputs, index, "input").name, out, size);
}
void KernelInfo_GetOutputName(const OrtKernelInfo* info, size_t index, char* out, size_t* size) {
  give_text(at(info->outputs, index, "output").name, out, size);
}
void KernelInfo_GetInputTypeInfo(const OrtKernelInfo* info, size_t index, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(type_of(given(info->inputs, index, "input")));
}
void KernelInfo_GetOutputTypeInfo(const OrtKernelInfo* info, size_t index, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(type_of(given(info->outputs, index, "output")));
}
void KernelInfo_GetNodeName(const OrtKernelInfo* info, char* out, size_t* size) {
  give_text(info->node.name, out, size);
}
void KernelInfo_GetOperatorDomain(const OrtKernelInfo* info, char* out, size_t* size) {
  give_text(info->node.domain, out, size);
}
void KernelInfo_GetOperatorType(const OrtKernelInfo* info, char* out, size_t* size) {
  give_text(info->node.op_type, out, size);
}
void KernelInfo_GetOperatorSinceVersion(const OrtKernelInfo* info, int* since_version) {
  *since_version = static_cast<int>(info->since);
}
void KernelInfo_GetLogger(const OrtKernelInfo* info, const OrtLogger** logger) {
  require(info->logger != nullptr, ErrorCode::kFail, "the node has no logger");
  *logger = info->logger.get();
}
void KernelInfo_GetConfigEntries(const OrtKernelInfo* info, OrtKeyValuePairs** out) {
  auto pairs = std::make_unique<OrtKeyValuePairs>();
  pairs->entries = info->config;
  pairs->changed();
  *out = pairs.release();
}
void KernelInfoGetConstantInput_tensor(const OrtKernelInfo* info, size_t index, int* is_constant,
                                       const OrtValue** out) {
  at(info->inputs, index, "input");
  *out = info->constants[index].get();
  *is_constant = *out != nullptr;
}
void KernelInfoGetAllocator(const OrtKernelInfo*, OrtMemType, OrtAllocator** out) {
  *out = default_allocator();
}
void CopyKernelInfo(const OrtKernelInfo* info, OrtKernelInfo** info_copy) {
  *info_copy = new OrtKernelInfo(*info);
}

// ---- attributes ----

namespace {

template <typename T>
std::vector<T> elements(const void* data, int length) {
  const T* first = static_cast<const T*>(data);
  return {first, first + length};
}

// The bytes of a list or a number, as many as fit; fewer than there are is an error.
void give_bytes(const void* from, size_t bytes, void* data, size_t len, size_t* out) {
  *out = bytes;
  require(len >= bytes, ErrorCode::kInvalidArgument, "the attribute has ", counted(bytes, "byte"),
          ", found room for ", len);
  if (bytes > 0) std::memcpy(data, from, bytes);
}

template <typename T>
const T& of_kind(const OrtOpAttr& attribute) {
  const T* value = std::get_if<T>(&attribute.value);
  require(value != nullptr, ErrorCode::kInvalidArgument, "the attribute '", attribute.name,
          "' has another type");
  return *value;
}

}  // namespace

OrtOpAttrType kind_of(const Attribute& attribute) {
  struct Kind {
    OrtOpAttrType operator()(int64_t) { return ORT_OP_ATTR_INT; }
    OrtOpAttrType operator()(float) { return ORT_OP_ATTR_FLOAT; }
    OrtOpAttrType operator()(const std::string&) { return ORT_OP_ATTR_STRING; }
    OrtOpAttrType operator()(const Tensor&) { return ORT_OP_ATTR_TENSOR; }
    OrtOpAttrType operator()(const std::vector<int64_t>&) { return ORT_OP_ATTR_INTS; }
    OrtOpAttrType operator()(const std::vector<float>&) { return ORT_OP_ATTR_FLOATS; }
    OrtOpAttrType operator()(const std::vector<std::string>&) { return ORT_OP_ATTR_STRINGS; }
    OrtOpAttrType operator()(const std::shared_ptr<Graph>&) { return ORT_OP_ATTR_GRAPH; }
    OrtOpAttrType operator()(const ValueInfo&) { return ORT_OP_ATTR_UNDEFINED; }
  };
  return std::visit(Kind(), attribute);
}

void CreateOpAttr(const char* name, const void* data, int len, OrtOpAttrType type, OrtOpAttr** op_attr) {
  require(len >= 0, ErrorCode::kInvalidArgument, "len is ", len, ", expected 0 or more");
  Attribute value;
  switch (type) {
    case ORT_OP_ATTR_INT:
      value = *static_cast<const int64_t*>(data);
      break;
    case ORT_OP_ATTR_INTS:
      value = elements<int64_t>(data, len);
      break;
    case ORT_OP_ATTR_FLOAT:
      value = *static_cast<const float*>(data);
      break;
    case ORT_OP_ATTR_FLOATS:
      value = elements<float>(data, len);
      break;
    case ORT_OP_ATTR_STRING:
      value = std::string(static_cast<const char*>(data));
      break;
    case ORT_OP_ATTR_STRINGS: {
      const auto texts_given = elements<const char*>(data, len);
      value = std::vector<std::string>(texts_given.begin(), texts_given.end());
      break;
    }
    case ORT_OP_ATTR_TENSOR:
      value = tensor_of(*static_cast<const OrtValue*>(data)).clone();
      break;
    default:
      fail(ErrorCode::kInvalidArgument, "attributes of type ", static_cast<int>(type),
           " cannot be created, expected one of numbers, strings or a tensor");
  }
  *op_attr = new OrtOpAttr{name, std::move(value)};
}

void ReadOpAttr(const OrtOpAttr* op_attr, OrtOpAttrType type, void* data, size_t len, size_t* out) {
  switch (type) {
    case ORT_OP_ATTR_INT:
      return give_bytes(&of_kind<int64_t>(*op_attr), sizeof(int64_t), data, len, out);
    case ORT_OP_ATTR_FLOAT:
      return give_bytes(&of_kind<float>(*op_attr), sizeof(float), data, len, out);
    case ORT_OP_ATTR_INTS: {
      const auto& list = of_kind<std::vector<int64_t>>(*op_attr);
      return give_bytes(list.data(), list.size() * sizeof(int64_t), data, len, out);
    }
    case ORT_OP_ATTR_FLOATS: {
      const auto& list = of_kind<std::vector<float>>(*op_attr);
      return give_bytes(list.data(), list.size() * sizeof(float), data, len, out);
    }
    case ORT_OP_ATTR_STRING: {
      const auto& text = of_kind<std::string>(*op_attr);
      return give_bytes(text.data(), text.size(), data, len, out);
    }
    case ORT_OP_ATTR_STRINGS: {  // each with its terminating zero
      std::string all;
      for (const std::string& text : of_kind<std::vector<std::string>>(*op_attr)) {
        all += text;
        all += '\0';
      }
      return give_bytes(all.data(), all.size(), data, len, out);
    }
    default:
      fail(ErrorCode::kInvalidArgument, "expected an attribute of numbers or strings, found one of type ",
           static_cast<int>(type));
  }
}

void OpAttr_GetType(const OrtOpAttr* attribute, OrtOpAttrType* type) { *type = kind_of(attribute->value); }
void OpAttr_GetName(const OrtOpAttr* attribute, const char** name) { *name = attribute->name.c_str(); }
void OpAttr_GetTensorAttributeAsOrtValue(const OrtOpAttr* attribute, OrtValue** attr_tensor) {
  *attr_tensor = new OrtValue{of_kind<Tensor>(*attribute).clone()};
}

// ---- shapes before a run ----

void ShapeInferContext_GetInputCount(const OrtShapeInferContext* context, size_t* out) {
  *out = context->node.inputs.size();
}

void ShapeInferContext_GetInputTypeShape(const OrtShapeInferContext* context, size_t index,
                                         OrtTensorTypeAndShapeInfo** info) {
  require(index < context->node.inputs.size(), ErrorCode::kInvalidArgument, "there is no input ", index,
          ", expected an index below ", context->node.inputs.size());
  context->inputs.resize(context->node.inputs.size());
  auto& known = context->inputs[index];  // which belongs to the context, as in onnxruntime
  if (!known)
    known = std::make_unique<OrtTensorTypeAndShapeInfo>(type_of(context->types.input(index)).tensor);
  *info = known.get();
}

void ShapeInferContext_GetAttribute(const OrtShapeInferContext* context, const char* attr_name,
                                    const OrtOpAttr** attr) {
  const auto found = context->node.attributes.find(attr_name);
  require(found != context->node.attributes.end(), ErrorCode::kInvalidArgument, context->node.label(),
          ": there is no attribute '", attr_name, "'");
  context->attributes.push_back(std::make_unique<OrtOpAttr>(OrtOpAttr{attr_name, found->second}));
  *attr = context->attributes.back().get();
}

void ShapeInferContext_SetOutputTypeShape(const OrtShapeInferContext* context, size_t index,
                                          const OrtTensorTypeAndShapeInfo* info) {
  require(index < context->node.outputs.size(), ErrorCode::kInvalidArgument, "there is no output ", index,
          ", expected an index below ", context->node.outputs.size());
  std::optional<std::vector<Dim>> dims;
  if (info->has_shape) {
    dims.emplace();
    for (size_t k = 0; k < info->dims.size(); ++k)
      dims->push_back({info->dims[k], k < info->symbols.size() ? info->symbols[k] : ""});
  }
  context->types.output(index, any_dtype_of(info->type), std::move(dims));
  context->stated[index] = true;
}

}  // namespace ortrain::capi
