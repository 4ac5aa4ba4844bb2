#include "runtime/error.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

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
  // Not std::to_chars: Apple's C++ library has that function for these numbers since macOS 13.3 and iOS 16.3.
  char* end = digits_ + std::snprintf(digits_, sizeof(digits_), "%.6g", number);
  // Some languages have another decimal point, which may have several bytes.
  const auto is_other = [](char c) { return std::strchr("0123456789+-einfa", c) == nullptr; };
  if (char* point = std::find_if(digits_, end, is_other); point != end) {
    *point = '.';
    end = std::copy(std::find_if_not(point + 1, end, is_other), end, point + 1);
  }
  text_ = {digits_, end};
}

MessagePart::MessagePart(const Counted& things) : noun_(things.noun) {
  whole(things.count);
  if (things.count == 1) return;
  // The first ending that fits; "axis" comes before other words that end with "s".
  struct Plural {
    std::string_view singular, plural;
  };
  static constexpr Plural kPlurals[] = {
      {"axis", "axes"}, {"index", "indices"}, {"matrix", "matrices"}, {"ay", "ays"},  {"ey", "eys"},
      {"y", "ies"},     {"s", "ses"},         {"x", "xes"},           {"ch", "ches"}, {"sh", "shes"},
      {"", "s"}};
  const Plural* found =
      std::ranges::find_if(kPlurals, [&](const Plural& p) { return noun_.ends_with(p.singular); });
  noun_.remove_suffix(found->singular.size());
  ending_ = found->plural;
}

char* MessagePart::copy_to(char* place) const {
  place = std::ranges::copy(text_, place).out;
  if (noun_.data() != nullptr) *place++ = ' ';
  place = std::ranges::copy(noun_, place).out;
  return std::ranges::copy(ending_, place).out;
}

std::string concat_parts(std::initializer_list<MessagePart> parts) {
  size_t size = 0;
  for (const MessagePart& part : parts) size += part.size();
  std::string joined(size, '\0');
  char* end = joined.data();
  for (const MessagePart& part : parts) end = part.copy_to(end);
  return joined;
}

void fail_with(ErrorCode code, std::initializer_list<MessagePart> parts) {
  throw Error(code, concat_parts(parts));
}

}  // namespace ortrain
