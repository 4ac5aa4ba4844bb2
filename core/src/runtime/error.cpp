#include "runtime/error.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace ortrain {
namespace {

template <typename T>
void append_whole(std::string& text, T number) {
  char digits[24];
  text.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
}

// Appends six significant digits. Not std::to_chars: Apple's C++ library has that function for these numbers
// since macOS 13.3 and iOS 16.3.
void append_floating(std::string& text, double number) {
  char digits[24];
  char* end = digits + std::snprintf(digits, sizeof(digits), "%.6g", number);
  // Some languages have another decimal point, which may have several bytes.
  const auto is_other = [](char c) { return std::strchr("0123456789+-einfa", c) == nullptr; };
  if (char* point = std::find_if(digits, end, is_other); point != end) {
    *point = '.';
    end = std::copy(std::find_if_not(point + 1, end, is_other), end, point + 1);
  }
  text.append(digits, end);
}

void append_counted(std::string& text, const Counted& things) {
  append_whole(text, things.count);
  text += ' ';
  std::string_view noun = things.noun;
  if (things.count == 1) {
    text += noun;
    return;
  }
  // The first ending that fits; "axis" comes before other words that end with "s".
  struct Plural {
    std::string_view singular, plural;
  };
  static constexpr Plural kPlurals[] = {
      {"axis", "axes"}, {"index", "indices"}, {"matrix", "matrices"}, {"ay", "ays"},  {"ey", "eys"},
      {"y", "ies"},     {"s", "ses"},         {"x", "xes"},           {"ch", "ches"}, {"sh", "shes"},
      {"", "s"}};
  const Plural* found =
      std::ranges::find_if(kPlurals, [&](const Plural& p) { return noun.ends_with(p.singular); });
  noun.remove_suffix(found->singular.size());
  text.append(noun).append(found->plural);
}

}  // namespace

std::string concat_list(const char* kinds, va_list parts) {
  std::string text;
  for (; *kinds != '\0'; ++kinds) {
    switch (*kinds) {
      case 's':
        text += *va_arg(parts, const std::string*);
        break;
      case 'v':
        text += *va_arg(parts, const std::string_view*);
        break;
      case 'n':
        append_counted(text, *va_arg(parts, const Counted*));
        break;
      case 'z':
        text += va_arg(parts, const char*);
        break;
      case 'c':
        text += static_cast<char>(va_arg(parts, int));
        break;
      case 'i':
        append_whole(text, va_arg(parts, int64_t));
        break;
      case 'u':
        append_whole(text, va_arg(parts, uint64_t));
        break;
      default:
        append_floating(text, va_arg(parts, double));
    }
  }
  return text;
}

std::string concat_parts(const char* kinds, ...) {
  va_list parts;
  va_start(parts, kinds);
  std::string text = concat_list(kinds, parts);
  va_end(parts);
  return text;
}

void fail_with(ErrorCode code, const char* kinds, ...) {
  va_list parts;
  va_start(parts, kinds);
  std::string text = concat_list(kinds, parts);
  va_end(parts);
  throw Error(code, std::move(text));
}

}  // namespace ortrain
