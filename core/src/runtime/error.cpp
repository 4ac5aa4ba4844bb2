#include "runtime/error.h"

#include <algorithm>
#include <charconv>

namespace ortrain {

void MessagePart::character(char c) {
  digits_[0] = c;
  text_ = {digits_, 1};
}

void MessagePart::whole(int64_t number) {
  text_ = {digits_, std::to_chars(digits_, digits_ + sizeof(digits_), number).ptr};
}

void MessagePart::whole(uint64_t number) {
  text_ = {digits_, std::to_chars(digits_, digits_ + sizeof(digits_), number).ptr};
}

void MessagePart::floating(double number) {
  text_ = {digits_,
           std::to_chars(digits_, digits_ + sizeof(digits_), number, std::chars_format::general, 6).ptr};
}

std::string concat_parts(std::initializer_list<MessagePart> parts) {
  size_t size = 0;
  for (const MessagePart& part : parts) size += part.text().size();
  std::string joined(size, '\0');
  char* end = joined.data();
  for (const MessagePart& part : parts) end = std::copy(part.text().begin(), part.text().end(), end);
  return joined;
}

void fail_with(ErrorCode code, std::initializer_list<MessagePart> parts) {
  throw Error(code, concat_parts(parts));
}

}  // namespace ortrain
