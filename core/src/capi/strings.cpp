// Tensors of strings. No operator takes them yet; programs create, fill and read them.
#include <cstring>
#include <string>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {
namespace {

OrtStrings& strings_of(const OrtValue& value) {
  require(value.strings != nullptr, ErrorCode::kInvalidArgument,
          "the value is not a tensor of strings, expected one");
  return *value.strings;
}

std::string& element_of(const OrtValue& value, size_t index) {
  std::vector<std::string>& elements = strings_of(value).elements;
  require(index < elements.size(), ErrorCode::kInvalidArgument, "there is no element number ", index,
          ", expected a number below ", elements.size());
  return elements[index];
}

void copy(const std::string& text, void* to, size_t room) {
  require(room >= text.size(), ErrorCode::kInvalidArgument, "the text has ", text.size(),
          " bytes, found room for ", room);
  if (!text.empty()) std::memcpy(to, text.data(), text.size());
}

}  // namespace

void FillStringTensor(OrtValue* value, const char* const* s, size_t s_len) {
  std::vector<std::string>& elements = strings_of(*value).elements;
  require(s_len == elements.size(), ErrorCode::kInvalidArgument, "expected ", elements.size(),
          " strings for the tensor, found ", s_len);
  elements = texts(s, s_len);
}

void FillStringTensorElement(OrtValue* value, const char* s, size_t index) { element_of(*value, index) = s; }

void GetResizedStringTensorElementBuffer(OrtValue* value, size_t index, size_t length_in_bytes,
                                         char** buffer) {
  std::string& element = element_of(*value, index);
  element.resize(length_in_bytes);
  *buffer = element.data();
}

void GetStringTensorDataLength(const OrtValue* value, size_t* len) {
  *len = 0;
  for (const std::string& element : strings_of(*value).elements) *len += element.size();
}

void GetStringTensorContent(const OrtValue* value, void* s, size_t s_len, size_t* offsets,
                            size_t offsets_len) {
  const std::vector<std::string>& elements = strings_of(*value).elements;
  require(offsets_len == elements.size(), ErrorCode::kInvalidArgument, "expected room for ", elements.size(),
          " offsets, one per string, found ", offsets_len);
  std::string all;
  for (size_t i = 0; i < elements.size(); ++i) {
    offsets[i] = all.size();
    all += elements[i];
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
