// Dropout and DropoutGrad. While training each element is kept with probability 1 - ratio and then divided by
// it.
//
// N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
// Whether an element is kept depends on the seed, the node, the number of the run and the element's position
// alone.

#include <algorithm>
#include <optional>

#include "ops/operator.h"
#include "runtime/random.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr float kDefaultRatio = 0.5f;

void expect_scalar(const NodeContext& c, size_t i, const char* what) {
  if (c.has_input(i))
    c.expect(c.size(i) == 1, what, " must be one value, found shape ", to_string(c.shape(i)));
}

// Reads ratio and training_mode of a node: inputs since version 12, an attribute and inference only before.
class Mode {
 public:
  Mode(KernelContext& c, size_t ratio, size_t training) {
    if (c.has_input(ratio)) {
      if (!is_floating(c.dtype(ratio)) || size_of(c.dtype(ratio)) < 4) c.reject_dtype(ratio);
      ratio_ = c.in(ratio);
      wide_ = c.dtype(ratio) == DType::kDouble;
    }
    if (c.has_input(training)) {
      if (c.dtype(training) != DType::kBool) c.reject_dtype(training);
      training_ = c.in(training);
    }
    label_ = c.node().label();
  }

  // The probability with which an element is dropped; 0 when the node does not train.
  double ratio(const Frame& f) const {
    if (!training_.defined() || !*f.at<bool>(training_)) return 0;
    if (!ratio_.defined()) return kDefaultRatio;
    const double ratio = wide_ ? *f.at<double>(ratio_) : static_cast<double>(*f.at<float>(ratio_));
    require(ratio >= 0 && ratio < 1, ErrorCode::kInvalidArgument, label_,
            ": ratio must lie in [0, 1), found ", ratio);
    return ratio;
  }

 private:
  Slot ratio_, training_;
  bool wide_ = false;
  std::string label_;
};

void shape(ShapeContext& c) {
  expect_scalar(c, 1, "ratio");
  expect_scalar(c, 2, "training_mode");
  c.output(0, c.dtype(0), c.shape(0));
  if (c.has_output(1)) c.output(1, c.opset() < 10 ? c.dtype(0) : DType::kBool, c.shape(0));
}

template <typename T>
Kernel typed(KernelContext& c) {
  const Mode mode(c, 1, 2);
  const Slot x = c.in(0), y = c.out_inplace(0, {0}), mask = c.has_output(1) ? c.out(1) : Slot{};
  const int64_t n = c.out_size(0);
  const bool mask_is_bool = c.opset() >= 10;
  const int64_t own_seed = c.node().int_or("seed", 0);
  const std::optional<uint64_t> fixed =
      c.node().has("seed") ? std::optional<uint64_t>(static_cast<uint64_t>(own_seed)) : std::nullopt;
  const uint64_t stream = c.stream();
  return [=](const Frame& f) {
    const double ratio = mode.ratio(f);
    const T* from = f.at<T>(x);
    T* to = f.at<T>(y);
    if (ratio == 0) {
      if (from != to) std::copy(from, from + n, to);
      if (mask.defined() && mask_is_bool) std::fill_n(f.at<bool>(mask), n, true);
      if (mask.defined() && !mask_is_bool) std::fill_n(f.at<T>(mask), n, T{1});
      return;
    }
    const T scale = static_cast<T>(1 / (1 - ratio));
    const float limit = static_cast<float>(ratio);
    bool* kept_out = mask.defined() ? f.at<bool>(mask) : nullptr;
    const uint64_t key = fixed ? *fixed : static_cast<uint64_t>(seed());
    // The counter: node and run in the upper half, position in the lower. One draw serves four elements.
    const uint64_t high = stream << 32 ^ f.run();
    parallel_for((n + 3) / 4, 40, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto bits = philox(key, high, static_cast<uint64_t>(block));
        const int64_t first = block * 4, count = std::min<int64_t>(4, n - first);
        for (int64_t k = 0; k < count; ++k) {
          const bool kept = uniform_from_bits(bits[static_cast<size_t>(k)]) >= limit;
          to[first + k] = kept ? from[first + k] * scale : T{0};
          if (kept_out) kept_out[first + k] = kept;
        }
      }
    });
  };
}

Kernel kernel(KernelContext& c) {
  // Before version 12 Dropout only marks where a framework dropped while it trained.
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed<decltype(zero)>(c); })) c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  if (g.opset() < 12) {
    g.set(0, g.dy(0));  // such a Dropout passes its input on
    return;
  }
  std::vector<std::string> inputs = {g.dy(0), g.want_y(1)};
  for (size_t i = 1; i < 3; ++i) inputs.push_back(g.has_x(i) ? g.x(i) : "");
  while (inputs.back().empty()) inputs.pop_back();
  g.set(0, g("DropoutGrad", inputs, {}, kMicrosoft));
}

// DropoutGrad: dx = dy / (1 - ratio) where the mask is set, else 0; dx = dy when the node does not train.
void gradient_shape(ShapeContext& c) {
  c.expect(c.dtype(1) == DType::kBool && c.shape(1) == c.shape(0),
           "the mask must be bool and of dY's shape, ", to_string(c.shape(0)), ", found ",
           to_string(c.dtype(1)), " ", to_string(c.shape(1)));
  expect_scalar(c, 2, "ratio");
  expect_scalar(c, 3, "training_mode");
  shape_like_first(c);
}

template <typename T>
Kernel typed_gradient(KernelContext& c) {
  const Mode mode(c, 2, 3);
  const Slot dy = c.in(0), mask = c.in(1), dx = c.out_inplace(0, {0});
  const int64_t n = c.out_size(0);
  return [=](const Frame& f) {
    const double ratio = mode.ratio(f);
    const T scale = static_cast<T>(1 / (1 - ratio));
    const T* from = f.at<T>(dy);
    const bool* kept = f.at<bool>(mask);
    T* to = f.at<T>(dx);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = kept[i] ? from[i] * scale : T{0};
    });
  };
}

Kernel gradient_kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed_gradient<decltype(zero)>(c); }))
    c.reject_dtype(0);
  return kernel;
}

ORTRAIN_OPERATOR({.type = "Dropout", .shape = shape, .kernel = kernel, .gradient = gradient, .impure = true});
ORTRAIN_OPERATOR(
    {.domain = kMicrosoft, .type = "DropoutGrad", .shape = gradient_shape, .kernel = gradient_kernel});

}  // namespace
}  // namespace ortrain
