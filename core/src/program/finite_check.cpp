#include "program/finite_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "runtime/error.h"
#include "runtime/half.h"

namespace ortrain {
namespace {

template <typename T>
ValueRange range_of(const T* values, int64_t count) {
  ValueRange range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (int64_t i = 0; i < count; ++i) {
    double v;
    if constexpr (std::is_same_v<T, double>)
      v = values[i];
    else
      v = static_cast<double>(static_cast<float>(values[i]));
    if (std::isnan(v)) {
      ++range.nans;
    } else if (std::isinf(v)) {
      ++range.infinities;
    } else {
      range.low = std::min(range.low, v);
      range.high = std::max(range.high, v);
    }
  }
  return range;
}

ValueRange range_of(const CheckedValue& value, const Frame& frame) {
  switch (value.dtype) {
    case DType::kDouble:
      return range_of(frame.at<const double>(value.slot), value.count);
    case DType::kFloat16:
      return range_of(frame.at<const Float16>(value.slot), value.count);
    case DType::kBFloat16:
      return range_of(frame.at<const BFloat16>(value.slot), value.count);
    default:
      return range_of(frame.at<const float>(value.slot), value.count);
  }
}

std::string describe(const CheckedValue& value, const ValueRange& range) {
  std::string text = concat("'", value.name, "'");
  if (range.low <= range.high) text += concat(" from ", range.low, " to ", range.high);
  if (range.nans > 0) text += concat(", ", range.nans, " NaN");
  if (range.infinities > 0) text += concat(", ", range.infinities, " infinite");
  if (value.count == 0) text += " without elements";
  return text;
}

}  // namespace

void FiniteCheck::before(const Frame& frame) {
  ranges_.clear();
  for (const CheckedValue& input : inputs_) ranges_.push_back(range_of(input, frame));
}

void FiniteCheck::after(const Frame& frame, const Node& node) const {
  const bool given_infinity =
      std::any_of(ranges_.begin(), ranges_.end(), [](const ValueRange& r) { return r.infinities > 0; });
  for (const CheckedValue& output : outputs_) {
    const ValueRange range = range_of(output, frame);
    if (range.nans == 0 && (range.infinities == 0 || given_infinity)) continue;
    std::string inputs;
    for (size_t i = 0; i < inputs_.size(); ++i)
      inputs += concat(i ? "; " : "", describe(inputs_[i], ranges_[i]));
    fail(ErrorCode::kFail, node.label(), ": ortrain.check_finite: of the ", counted(output.count, "value"),
         " of output '", output.name, "' ", range.nans, agreeing(range.nans, " is", " are"), " NaN and ",
         range.infinities, " infinite; its inputs: ", inputs.empty() ? "none of a floating type" : inputs);
  }
}

}  // namespace ortrain
