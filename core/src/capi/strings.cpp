// Tensors of strings, which programs create, fill and read.
#include <cstring>
#include <string>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "runtime/text_tensor.h"

namespace ortrain::capi {
namespace {

// The strings of a tensor, or those that a sparse one stores.
const Tensor& strings_of(const OrtValue& value) {
  const auto* tensor = value.sparse ? &value.sparse->values : std::get_if<Tensor>(&value.value);
  require(tensor && tensor->dtype() == DType::kString, ErrorCode::kInvalidArgument,
          "the value is not a tensor of strings, expected one");
  return *tensor;
}

std::string& element_of(const OrtValue& value, size_t index) {
  const Tensor& strings = strings_of(value);
  require(index < static_cast<size_t>(strings.size()), ErrorCode::kInvalidArgument,
          "there is no element number ", index, ", expected a number below ", strings.size());
  return own_text(strings, index);
}

void copy(const std::string& text, void* to, size_t room) {
  require(room >= text.size(), ErrorCode::kInvalidArgument, "the text has ", counted(text.size(), "byte"),
          ", found room for ", room);
  if (!text.empty()) std::memcpy(to, text.data(), text.size());
}

}  // namespace

void FillStringTensor(OrtValue* value, const char* const* s, size_t s_len) {
  const Tensor& strings = strings_of(*value);
  require(s_len == static_cast<size_t>(strings.size()), ErrorCode::kInvalidArgument, "expected ",
          counted(strings.size(), "string"), " for the tensor, found ", s_len);
  for (size_t i = 0; i < s_len; ++i) own_text(strings, i) = s[i];
}

void FillStringTensorElement(OrtValue* value, const char* s, size_t index) { element_of(*value, index) = s; }

void GetResizedStringTensorElementBuffer(OrtValue* value, size_t index, size_t length_in_bytes,
                                         char** buffer) {
  std::string& element = element_of(*value, index);
  element.resize(length_in_bytes);
  *buffer = element.data();
}

void GetStringTensorDataLength(const OrtValue* value, size_t* len) {
  const Tensor& strings = strings_of(*value);
  *len = 0;
  for (int64_t i = 0; i < strings.size(); ++i) *len += text(text_places(strings)[i]).size();
}

void GetStringTensorContent(const OrtValue* value, void* s, size_t s_len, size_t* offsets,
                            size_t offsets_len) {
  const Tensor& strings = strings_of(*value);
  require(offsets_len == static_cast<size_t>(strings.size()), ErrorCode::kInvalidArgument,
          "expected room for ", counted(strings.size(), "offset"), ", one per string, found ", offsets_len);
  std::string all;
  for (size_t i = 0; i < offsets_len; ++i) {
    offsets[i] = all.size();
    all += text(text_places(strings)[i]);
  }
  copy(all, s, s_len);
}

void GetStringTensorElementLength(const OrtValue* value, size_t index, size_t* out) {
  *out = element_of(*value, index).size();
}

void GetStringTensorElement(const OrtValue* value, size_t s_len, size_t index, void* s) {
  copy(element_of(*value, index), s, s_len);
}

}  // namespace ortrain::capi
