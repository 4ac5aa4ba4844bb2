#include "runtime/text_tensor.h"

#include <memory>

namespace ortrain {
namespace {

thread_local TextScope::Texts* current = nullptr;

struct Owned {
  std::vector<std::string> texts;
  std::vector<Text> places;
};

}  // namespace

Tensor text_tensor(std::vector<std::string> texts, Shape shape) {
  require(static_cast<int64_t>(texts.size()) == element_count(shape), ErrorCode::kInvalidArgument,
          "a tensor of shape ", to_string(shape), " needs ", counted(element_count(shape), "string"),
          ", found ", texts.size());
  auto owned = std::make_shared<Owned>();
  owned->texts = std::move(texts);
  owned->places.reserve(owned->texts.size() + 1);
  for (const std::string& one : owned->texts) owned->places.push_back(&one);
  if (owned->places.empty()) owned->places.push_back(nullptr);  // an empty tensor has an address too
  void* data = owned->places.data();
  return Tensor(DType::kString, std::move(shape), data, std::move(owned));
}

Tensor text_tensor(Shape shape) {
  std::vector<std::string> texts(static_cast<size_t>(element_count(shape)));
  return text_tensor(std::move(texts), std::move(shape));
}

Tensor with_own_texts(const Tensor& tensor) {
  const Text* from = text_places(tensor);
  std::vector<std::string> texts;
  texts.reserve(static_cast<size_t>(tensor.size()));
  for (int64_t i = 0; i < tensor.size(); ++i) texts.push_back(text(from[i]));
  return text_tensor(std::move(texts), tensor.shape());
}

TextScope::TextScope(Texts& texts) : before_(std::exchange(current, &texts)) { texts.clear(); }
TextScope::~TextScope() { current = before_; }

Text keep_text(std::string made) {
  require(current != nullptr, ErrorCode::kFail, "strings can be computed only during a run");
  return &current->emplace_back(std::move(made));
}

}  // namespace ortrain
