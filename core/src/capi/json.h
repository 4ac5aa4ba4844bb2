// Texts of JSON, for lists of declarations.
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace ortrain::capi {

// Texts of declarations have no characters that JSON escapes, except quotation marks.
inline std::string json_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// null for a number that is not finite.
template <typename Number>
std::string json_number(Number value) {
  return std::isfinite(value) ? concat(value) : "null";
}

template <typename Items, typename F>
std::string json_list(const Items& items, F&& text_of) {
  std::string out = "[";
  for (const auto& item : items) out += (out.size() == 1 ? "" : ", ") + text_of(item);
  return out + "]";
}

}  // namespace ortrain::capi
