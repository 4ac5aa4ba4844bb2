// The sum of a gradient over broadcast axes, which all gradient rules share.
#include "op/gradient_context.h"

#include "op/opset.h"

#include <optional>
#include <vector>

namespace ortrain {
namespace {

constexpr const char* kMicrosoftDomain = "com.microsoft";

// How a value was broadcast to another value, as far as the model declares the shapes.
struct Broadcast {
  bool decided = false;
  std::vector<int64_t> leading;  // axes that the value does not have
  std::vector<int64_t> inner;    // axes along which the value has size 1
};

Broadcast compare(const std::optional<std::vector<Dim>>& small,
                  const std::optional<std::vector<Dim>>& large) {
  Broadcast result;
  if (!small || !large || small->size() > large->size()) return result;
  const size_t offset = large->size() - small->size();
  for (size_t a = 0; a < offset; ++a) result.leading.push_back(static_cast<int64_t>(a));
  for (size_t a = 0; a < small->size(); ++a) {
    const Dim& s = (*small)[a];
    const Dim& l = (*large)[a + offset];
    if (s.same(l)) continue;
    if (s.value == 1) {
      result.inner.push_back(
          static_cast<int64_t>(a + offset));  // also correct if the other size turns out to be 1
    } else if (!s.known() && l.value != 1) {
      return result;  // an unknown dimension may be 1
    }
  }
  result.decided = true;
  return result;
}

}  // namespace

Name GradientContext::unbroadcast(Name gradient, Name from, Name value) {
  if (from == value) return gradient;
  const Broadcast known = compare(dims(value), dims(from));
  if (known.decided) {
    if (known.inner.empty())
      return known.leading.empty() ? Name(gradient) : reduce_sum(gradient, known.leading, false);
    std::vector<int64_t> axes = known.leading;
    axes.insert(axes.end(), known.inner.begin(), known.inner.end());
    const Name reduced = reduce_sum(gradient, axes, true);
    return known.leading.empty() ? reduced : squeeze(reduced, known.leading);
  }
  const Name small = (*this)("Shape", {value});
  const Name large = (*this)("Shape", {from});
  const Name axes = emit("BroadcastGradientArgs", {small, large}, 2, {}, kMicrosoftDomain)[0];
  const Name reduced =
      (*this)("ReduceSumTraining", {gradient, axes},
              {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{1}}}, kMicrosoftDomain);
  // The dimensions are literal: a 0 is an empty axis, not "unchanged".
  Attributes literal;
  if (opset() >= since::kAllowZero) literal["allowzero"] = int64_t{1};
  return (*this)("Reshape", {reduced, small}, literal);
}

}  // namespace ortrain
