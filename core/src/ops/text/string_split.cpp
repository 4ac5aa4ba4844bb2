// StringSplit: the parts of each text between delimiters, padded with empty texts, and their number.
#include <algorithm>

#include "op/dynamic.h"
#include "runtime/text_tensor.h"

namespace ortrain {
namespace {

using Parts = std::vector<std::string_view>;

// Splits at white space. White space at both ends is dropped, and a run of white space between words is one
// delimiter.
Parts split_words(std::string_view rest, int64_t most) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  Parts parts;
  while (true) {
    const size_t begin = rest.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return parts;
    rest.remove_prefix(begin);
    const size_t end =
        static_cast<int64_t>(parts.size()) == most ? std::string_view::npos : rest.find_first_of(kSpace);
    if (end == std::string_view::npos) {
      parts.push_back(rest.substr(0, rest.find_last_not_of(kSpace) + 1));
      return parts;
    }
    parts.push_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
}

Parts split(std::string_view rest, const std::string& delimiter, int64_t most) {
  if (delimiter.empty()) return split_words(rest, most);
  Parts parts;
  if (rest.empty()) return parts;
  while (static_cast<int64_t>(parts.size()) != most) {
    const size_t end = rest.find(delimiter);
    if (end == std::string_view::npos) break;
    parts.push_back(rest.substr(0, end));
    rest.remove_prefix(end + delimiter.size());
  }
  parts.push_back(rest);
  return parts;
}

void types(TypeContext& c) {
  auto dims = c.input(0).dims;
  c.output(1, DType::kInt64, dims);
  if (dims) dims->push_back(Dim{});
  c.output(0, DType::kString, dims);
}

void run(DynamicContext& c) {
  const Tensor& x = c.in(0);
  if (x.dtype() != DType::kString) c.reject_dtype(0);
  const std::string delimiter = c.node().string_or("delimiter", "");
  const int64_t given = c.node().int_or("maxsplit", -1), most = given < 0 ? -1 : given;
  std::vector<Parts> all;
  int64_t width = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    all.push_back(split(text(text_places(x)[i]), delimiter, most));
    width = std::max(width, static_cast<int64_t>(all.back().size()));
  }
  Shape shape = x.shape();
  shape.push_back(width);
  if (c.has_output(0)) {
    Text* y = text_places(c.out(0, DType::kString, shape));
    for (const Parts& parts : all)
      for (int64_t k = 0; k < width; ++k)
        *y++ = k < static_cast<int64_t>(parts.size()) ? keep_text(std::string(parts[static_cast<size_t>(k)]))
                                                      : nullptr;
  }
  if (c.has_output(1)) {
    int64_t* counts = c.out(1, DType::kInt64, x.shape()).data<int64_t>();
    for (const Parts& parts : all) *counts++ = static_cast<int64_t>(parts.size());
  }
}

DType element(const ElementTypes&, size_t o) { return o == 0 ? DType::kString : DType::kInt64; }

ORTRAIN_OPERATOR({.type = "StringSplit",
                  .rules = {.types = types, .element_type = element},
                  .traits = {.stops_gradient = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
