// Tensors of strings. Their elements are pointers to texts, so that kernels move strings as they move numbers
// of that size; a null pointer is an empty text.
//
// Texts that a kernel makes live until the next run of the same graph (TextScope). Values that leave a run
// get copies of their texts.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor.h"

namespace ortrain {

// An element: 64 bits on every system, because kernels move strings as if they were 64-bit numbers.
class Text {
 public:
  Text() = default;
  Text(const std::string* text) : address_(reinterpret_cast<uintptr_t>(text)) {}
  operator const std::string*() const {
    return reinterpret_cast<const std::string*>(static_cast<uintptr_t>(address_));
  }

 private:
  uint64_t address_ = 0;
};

// The elements of a tensor of strings; throws for others.
inline Text* text_places(const Tensor& tensor) {
  require(tensor.dtype() == DType::kString, ErrorCode::kInvalidArgument, "a tensor of type ",
          to_string(tensor.dtype()), " was read as strings");
  return reinterpret_cast<Text*>(tensor.raw());
}
inline const std::string& text(Text of) {
  static const std::string empty;
  return of ? *of : empty;
}

// A tensor that owns its texts: empty texts, the given texts, or copies of the texts of another tensor.
Tensor text_tensor(Shape shape);
Tensor text_tensor(std::vector<std::string> texts, Shape shape);
Tensor with_own_texts(const Tensor& tensor);
// An element of a tensor that owns its texts, for writing.
inline std::string& own_text(const Tensor& tensor, size_t i) {
  return const_cast<std::string&>(*text_places(tensor)[i]);
}

// The texts that the kernels of a graph make. They are dropped when the next scope over them begins.
class TextScope {
 public:
  using Texts = std::deque<std::string>;
  explicit TextScope(Texts& texts);
  ~TextScope();
  TextScope(const TextScope&) = delete;
  TextScope& operator=(const TextScope&) = delete;

 private:
  Texts* before_;
};

// A text that a kernel made, on the thread that runs the graph; throws outside of a run.
Text keep_text(std::string made);

}  // namespace ortrain
