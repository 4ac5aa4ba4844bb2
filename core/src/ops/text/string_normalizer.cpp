// StringNormalizer: texts in lower or upper case, without stop words.
#include <algorithm>
#include <string>
#include <unordered_set>

#include "op/dynamic.h"
#include "runtime/system.h"
#include "runtime/text_tensor.h"

namespace ortrain {
namespace {

enum class Case { kNone, kLower, kUpper };

Case case_of(const Node& node, const char* attribute) {
  const std::string name = node.string_or(attribute, "NONE");
  if (name == "LOWER") return Case::kLower;
  if (name == "UPPER") return Case::kUpper;
  require(name == "NONE", ErrorCode::kInvalidGraph, node.label(), ": attribute ", attribute,
          " must be NONE, LOWER or UPPER, found '", name, "'");
  return Case::kNone;
}

void append_utf8(std::string& out, uint32_t letter) {
  if (letter < 0x80) {
    out += static_cast<char>(letter);
  } else if (letter < 0x800) {
    out += static_cast<char>(0xC0 | letter >> 6);
    out += static_cast<char>(0x80 | (letter & 0x3F));
  } else if (letter < 0x10000) {
    out += static_cast<char>(0xE0 | letter >> 12);
    out += static_cast<char>(0x80 | (letter >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (letter & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | letter >> 18);
    out += static_cast<char>(0x80 | (letter >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (letter >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (letter & 0x3F));
  }
}

// Bytes that are not UTF-8 do not change.
std::string in_case(const std::string& from, Case wanted) {
  if (wanted == Case::kNone) return from;
  std::string out;
  for (size_t i = 0; i < from.size();) {
    const auto lead = static_cast<unsigned char>(from[i]);
    const size_t length = lead < 0x80       ? 1
                          : lead >> 5 == 6  ? 2
                          : lead >> 4 == 14 ? 3
                          : lead >> 3 == 30 ? 4
                                            : 0;
    uint32_t letter = length <= 1 ? lead : lead & (0x7Fu >> length);
    bool valid = length > 0 && i + length <= from.size();
    for (size_t k = 1; valid && k < length; ++k) {
      const auto next = static_cast<unsigned char>(from[i + k]);
      valid = next >> 6 == 2;
      letter = letter << 6 | (next & 0x3Fu);
    }
    if (!valid) {
      out += from[i++];
      continue;
    }
    append_utf8(out, wanted == Case::kLower ? system::lower_case(letter) : system::upper_case(letter));
    i += length;
  }
  return out;
}

void types(TypeContext& c) {
  auto dims = c.input(0).dims;
  if (dims && !dims->empty()) dims->back() = Dim{};
  c.output(0, DType::kString, dims);
}

void run(DynamicContext& c) {
  const Tensor& x = c.in(0);
  if (x.dtype() != DType::kString) c.reject_dtype(0);
  const Shape& given = x.shape();
  c.expect(given.size() == 1 || (given.size() == 2 && given[0] == 1),
           "its input must have shape [C] or [1, C], found ", to_string(given));
  const Case wanted = case_of(c.node(), "case_change_action");
  // Words are compared in the case of the result, or in lower case.
  const bool exact = c.node().int_or("is_case_sensitive", 0) != 0;
  const Case compared = exact ? Case::kNone : wanted == Case::kNone ? Case::kLower : wanted;
  std::unordered_set<std::string> stop;
  if (const auto at = c.node().attributes.find("stopwords"); at != c.node().attributes.end())
    if (const auto* words = std::get_if<std::vector<std::string>>(&at->second))
      for (const std::string& word : *words) stop.insert(in_case(word, compared));
  std::vector<std::string> kept;
  for (int64_t i = 0; i < x.size(); ++i) {
    const std::string& word = text(text_places(x)[i]);
    if (stop.empty() || !stop.contains(in_case(word, compared))) kept.push_back(in_case(word, wanted));
  }
  if (kept.empty()) kept.emplace_back();
  Shape shape = given;
  shape.back() = static_cast<int64_t>(kept.size());
  Text* y = text_places(c.out(0, DType::kString, shape));
  for (std::string& word : kept) *y++ = keep_text(std::move(word));
}

ORTRAIN_OPERATOR({.type = "StringNormalizer",
                  .rules = {.types = types, .element_type = always<DType::kString>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
