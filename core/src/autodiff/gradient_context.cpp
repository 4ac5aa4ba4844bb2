// The parts of GradientContext that are the same for every rule: forms that differ by opset, and undoing a
// broadcast.
#include "autodiff/gradient_context.h"

#include <algorithm>

namespace ortrain {
namespace {

constexpr const char* kMicrosoftDomain = "com.microsoft";
constexpr int64_t kAxesAsInput =
    13;  // since this opset ReduceSum, Squeeze and Unsqueeze take axes as an input

// How x(i) relates to the value that it was broadcast into, as far as the model states it.
struct Broadcast {
  bool decided = false;
  std::vector<int64_t> leading;  // axes that x(i) does not have
  std::vector<int64_t> inner;    // axes along which x(i) has extent 1
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
          static_cast<int64_t>(a + offset));  // right also where the other extent turns out as 1
    } else if (!s.known() && l.value != 1) {
      return result;  // an unknown extent may be 1
    }
  }
  result.decided = true;
  return result;
}

}  // namespace

std::optional<int64_t> GradientContext::rank(const std::string& value) const {
  const auto d = dims(value);
  if (!d) return std::nullopt;
  return static_cast<int64_t>(d->size());
}

std::string GradientContext::scalar_like(const std::string& like, double value) {
  const DType type = dtype(like);
  if (type == DType::kUndefined) {
    reject(concat("the element type of value \"", like,
                  "\" is not known, and its gradient needs it; run ONNX shape inference on the model first"));
  }
  return constant(Tensor::scalar(type, value));
}

std::string GradientContext::reduce_sum(const std::string& value, const std::vector<int64_t>& axes,
                                        bool keepdims) {
  const int64_t keep = keepdims ? 1 : 0;
  if (opset() < kAxesAsInput) return (*this)("ReduceSum", {value}, {{"axes", axes}, {"keepdims", keep}});
  return (*this)("ReduceSum", {value, int64s(axes)}, {{"keepdims", keep}});
}

std::string GradientContext::unsqueeze(const std::string& value, const std::vector<int64_t>& axes) {
  if (opset() < kAxesAsInput) return (*this)("Unsqueeze", {value}, {{"axes", axes}});
  return (*this)("Unsqueeze", {value, int64s(axes)});
}

std::string GradientContext::squeeze(const std::string& value, const std::vector<int64_t>& axes) {
  if (opset() < kAxesAsInput) return (*this)("Squeeze", {value}, {{"axes", axes}});
  return (*this)("Squeeze", {value, int64s(axes)});
}

std::string GradientContext::unbroadcast(const std::string& gradient, const std::string& from, size_t i) {
  if (from == x(i)) return gradient;
  const Broadcast known = compare(dims(x(i)), dims(from));
  if (known.decided) {
    if (known.inner.empty())
      return known.leading.empty() ? gradient : reduce_sum(gradient, known.leading, false);
    std::vector<int64_t> axes = known.leading;
    axes.insert(axes.end(), known.inner.begin(), known.inner.end());
    const std::string reduced = reduce_sum(gradient, axes, true);
    return known.leading.empty() ? reduced : squeeze(reduced, known.leading);
  }
  const std::string small = (*this)("Shape", {x(i)});
  const std::string large = (*this)("Shape", {from});
  const std::string axes = emit("BroadcastGradientArgs", {small, large}, 2, {}, kMicrosoftDomain)[0];
  const std::string reduced =
      (*this)("ReduceSumTraining", {gradient, axes},
              {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{1}}}, kMicrosoftDomain);
  // The extents are meant literally: a 0 is an empty axis, not "as before".
  Attributes literal;
  if (opset() >= 14) literal["allowzero"] = int64_t{1};
  return (*this)("Reshape", {reduced, small}, literal);
}

void GradientContext::reject(const std::string& why) const {
  fail(ErrorCode::kNotImplemented, node().label(), ": ", why);
}

}  // namespace ortrain
