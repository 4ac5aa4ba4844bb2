// RegexFullMatch: whether a regular expression matches a whole text.
#include <memory>
#include <regex>

#include "op/operator.h"
#include "runtime/text_tensor.h"

namespace ortrain {
namespace {

// The standard library's matcher needs stack memory for each character.
constexpr size_t kLongest = 4096;

std::regex pattern_of(const NodeContext& c) {
  const std::string pattern = c.node().string_or("pattern", "");
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    c.reject("attribute pattern, \"", pattern, "\", is not a valid regular expression: ", error.what());
  }
}

void shape(ShapeContext& c) {
  if (c.dtype(0) != DType::kString) c.reject_dtype(0);
  pattern_of(c);
  c.output(0, DType::kBool, c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const auto pattern = std::make_shared<const std::regex>(pattern_of(c));
  const Slot x = c.in(0), y = c.out(0);
  return [=, n = c.size(0), label = c.node().label()](const Frame& f) {
    for (int64_t i = 0; i < n; ++i) {
      const std::string& one = text(f.at<Text>(x)[i]);
      require(one.size() <= kLongest, ErrorCode::kNotImplemented, label, ": element ", i, " has ",
              counted(one.size(), "byte"), ", expected at most ", kLongest);
      f.at<bool>(y)[i] = std::regex_match(one, *pattern);
    }
  };
}

ORTRAIN_OPERATOR({.type = "RegexFullMatch",
                  .rules = {.shape = shape, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
