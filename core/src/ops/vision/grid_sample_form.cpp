// The gradient of GridSample with operators of ONNX (op/standard_form.h). The formulas are those of
// ops/vision/grid_sample.cpp.
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/vision/sampling_form.h"

namespace ortrain {
namespace {

Expression operator||(const Expression& a, const Expression& b) { return a.call("Or", b); }

constexpr double kFar = 100;  // pixels: beyond the reach of every mode

// The taps of the points along one axis, from their coordinates [N, P].
class AxisForm {
 public:
  AxisForm(DecompositionContext& e, const Expression& size)
      : e_(e),
        mode_(e.node().string_or("mode", "linear")),
        padding_(e.node().string_or("padding_mode", "zeros")),
        aligned_(e.node().int_or("align_corners", 0) != 0),
        size_(size),
        low_(size.number(aligned_ ? 0 : -0.5)),
        high_(aligned_ ? size - 1 : size - 0.5) {}

  TapsForm taps(const Expression& coordinate) const {
    Expression v = aligned_ ? (coordinate + 1) * ((size_ - 1) * 0.5) : ((coordinate + 1) * size_ - 1) * 0.5;
    Expression derivative = (aligned_ ? size_ - 1 : size_) * 0.5;
    v = (v.call("Abs") < 1e30).choose(v, v.number(-kFar));  // NaN and infinity
    if (mode_ == "nearest") v = v.call("Round");
    const Expression outside = v < low_ || v > high_;
    if (padding_ == "border") {
      v = outside.choose(clipped(v, v.number(0), size_ - 1), v);
      derivative = outside.choose(v.number(0), derivative);
    } else if (padding_ == "reflection") {
      const auto [inside, sign] = reflected(v);
      derivative = outside.choose(derivative * sign, derivative);
      v = outside.choose(inside, v);
    }
    v = clipped(v, v.number(-kFar), size_ + kFar);
    const Expression below = v.call("Floor");
    return at(below, v - below, derivative);
  }

 private:
  Expression clipped(const Expression& v, const Expression& low, const Expression& high) const {
    return v.call("Max", low).call("Min", high);
  }

  // A coordinate, mirrored at the ends of the image until it is inside, and the derivative of the mirrored
  // coordinate.
  std::pair<Expression, Expression> reflected(const Expression& v) const {
    const Expression range = high_ - low_, empty = range < 1e-6, span = empty.choose(range.number(1), range);
    const Expression left = v < low_, beyond = left.choose(low_ - v, v - high_);
    const Expression times = (beyond / span).call("Floor"), rest = beyond - times * span;
    const Expression odd = times - (times * 0.5).call("Floor") * 2;
    const Expression from_low = left.call("Xor", odd > 0.5);
    const Expression inside = from_low.choose(low_ + rest, high_ - rest);
    return {empty.choose(low_, inside), empty.choose(v.number(0), odd * 2 - 1)};
  }

  TapsForm at(const Expression& below, const Expression& r, const Expression& derivative) const {
    std::vector<Expression> weights, derivatives;
    double first = 0;
    if (mode_ == "nearest") {
      weights = {r * 0 + 1};
    } else if (mode_ == "cubic" || mode_ == "bicubic") {
      first = -1;
      for (int k = 0; k < 4; ++k) {
        const auto [weight, slope] = cubic(r + (1 - k), k);
        weights.push_back(weight);
        derivatives.push_back(derivative * slope);
      }
    } else {
      weights = {1 - r, r};
      derivatives = {r * 0 - derivative, r * 0 + derivative};
    }
    Names indices, all_weights, all_derivatives;
    for (size_t k = 0; k < weights.size(); ++k) {
      const Expression i = below + (first + static_cast<double>(k)), last = size_ - 1;
      const Expression outside = i < 0 || i > last;
      const Expression zero = i.number(0);
      const auto seen = [&](const Expression& value) {
        return e_.unsqueeze(padding_ == "zeros" ? outside.choose(zero, value) : value, {2});
      };
      const Expression inside = padding_ == "reflection" ? outside.choose(reflected(i).first, i) : i;
      indices.push_back(e_.unsqueeze(clipped(inside, zero, last), {2}));
      all_weights.push_back(seen(weights[k]));
      if (!derivatives.empty()) all_derivatives.push_back(seen(derivatives[k]));
    }
    const auto joined = [&](const Names& parts) {
      return parts.size() < 2 ? (parts.empty() ? "" : parts[0]) : e_("Concat", parts, {{"axis", int64_t{2}}});
    };
    return {e_("Cast", {joined(indices)}, {{"to", static_cast<int64_t>(DType::kInt64)}}), joined(all_weights),
            joined(all_derivatives)};
  }

  // Keys' cubic convolution of pixel k at the signed distance s, and its derivative.
  static std::pair<Expression, Expression> cubic(const Expression& s, int k) {
    constexpr double a = -0.75;
    const double sign = k < 2 ? 1 : -1;
    const Expression d = s * sign;
    if (k == 1 || k == 2)
      return {((d * (a + 2)) - (a + 3)) * d * d + 1, (d * (3 * (a + 2)) - 2 * (a + 3)) * d * sign};
    return {((d * a - 5 * a) * d + 8 * a) * d - 4 * a, ((d * (3 * a) - 10 * a) * d + 8 * a) * sign};
  }

  DecompositionContext& e_;
  std::string mode_, padding_;
  bool aligned_;
  Expression size_, low_, high_;
};

// GridSampleGrad(dY, X, grid) → dX, dgrid
void grad_form(DecompositionContext& e) {
  const int64_t axes = need_rank(e, e.x(1)) - 2;
  const Name grid = e("Reshape", {e.x(2), e.int64s({0, -1, axes})});
  std::vector<TapsForm> taps;
  for (int64_t d = 0; d < axes; ++d) {
    const Expression size(e, as_scalar(e, cast_like(e, dims_of(e, e.x(1), d + 2, d + 3), e.x(2))));
    const Name coordinate =
        e("Gather", {grid, e.constant(Tensor::scalar(axes - 1 - d))}, {{"axis", int64_t{2}}});
    taps.push_back(AxisForm(e, size).taps(Expression(e, coordinate)));
  }
  const bool moves = !taps[0].derivative.empty();
  const SamplingForm sampling(e, e.x(1), taps);
  const Name dy = e("Reshape", {e.x(0), e.int64s({0, 0, -1})});
  if (e.has_y(0)) e.set(0, sampling.of_image(dy));
  if (!e.has_y(1)) return;
  const Name shape = e("Shape", {e.x(2)});
  if (!moves) return e.set(1, e("Expand", {e.scalar_like(e.x(2), 0), shape}));
  Names gradients;
  for (const Name gradient : sampling.of_coordinates(dy))
    gradients.insert(gradients.begin(), e.unsqueeze(gradient, {2}));
  const Name all = gradients.size() == 1 ? gradients[0] : e("Concat", gradients, {{"axis", int64_t{2}}});
  e.set(1, e("Reshape", {all, shape}));
}

ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GridSampleGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
