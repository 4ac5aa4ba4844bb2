// CausalConvWithState: a depthwise convolution along the last axis that only sees the past,
//
//     y[l] = act(bias + sum_j w[j] p[l + j]),   p = (past_state or k - 1 zeros) followed by x
//
// with the last k - 1 elements of p as the next state. act is the identity or SiLU, x sigmoid(x).
#include <algorithm>
#include <cmath>

#include "op/gradient_expression.h"
#include "op/operator.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr size_t kWeight = 1, kBias = 2, kPast = 3;

bool is_silu(const NodeContext& c) {
  const std::string activation = c.node().string_or("activation", "none");
  c.expect(activation == "none" || activation == "silu" || activation == "swish",
           "activation must be none, silu or swish, found '", activation, "'");
  return activation != "none";
}

void shape(ShapeContext& c) {
  const Shape &x = c.shape(0), &w = c.shape(kWeight);
  c.expect(x.size() == 3, "its input must have shape [batch, channels, length], found ", to_string(x));
  c.expect(w.size() == 3 && w[0] == x[1] && w[1] == 1 && w[2] >= 1, "the weight must have shape [", x[1],
           ", 1, k], found ", to_string(w));
  c.expect(!c.has_input(kBias) || c.shape(kBias) == Shape{x[1]}, "the bias must have shape [", x[1],
           "], found ", c.has_input(kBias) ? to_string(c.shape(kBias)) : "");
  const Shape state = {x[0], x[1], w[2] - 1};
  c.expect(!c.has_input(kPast) || c.shape(kPast) == state, "past_state must have shape ", to_string(state),
           ", found ", c.has_input(kPast) ? to_string(c.shape(kPast)) : "");
  for (size_t i = 1; i < c.input_count(); ++i)
    c.expect(!c.has_input(i) || c.dtype(i) == c.dtype(0), "its inputs must have the same type, found ",
             to_string(c.dtype(0)), " and ", c.has_input(i) ? to_string(c.dtype(i)) : "");
  is_silu(c);
  c.output(0, c.dtype(0), x);
  if (c.has_output(1)) c.output(1, c.dtype(0), state);
}

template <typename T>
Kernel typed(KernelContext& c) {
  const Slot x = c.in(0), w = c.in(kWeight), bias = c.has_input(kBias) ? c.in(kBias) : Slot{},
             past = c.has_input(kPast) ? c.in(kPast) : Slot{};
  const Slot y = c.out(0), present = c.has_output(1) ? c.out(1) : Slot{};
  const int64_t rows = c.shape(0)[0] * c.shape(0)[1], channels = c.shape(0)[1], length = c.shape(0)[2],
                width = c.shape(kWeight)[2];
  const bool silu = is_silu(c);
  return [=](const Frame& f) {
    parallel_for(rows, length * (width + (silu ? 16 : 0)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t channel = row % channels;
        const T *from = f.at<T>(x) + row * length, *taps = f.at<T>(w) + channel * width;
        const T* before = past.defined() ? f.at<T>(past) + row * (width - 1) : nullptr;
        T* to = f.at<T>(y) + row * length;
        std::fill_n(to, length, bias.defined() ? f.at<T>(bias)[channel] : T{0});
        for (int64_t j = 0; j < width; ++j) {
          // p[l + j] is x[l + j - (width - 1)] or, for the first elements, in the past.
          const int64_t late = width - 1 - j, old = std::min(late, length);
          if (before)
            for (int64_t l = 0; l < old; ++l) to[l] += taps[j] * before[l + j];
          for (int64_t l = old; l < length; ++l) to[l] += taps[j] * from[l - late];
        }
        if (silu)
          for (int64_t l = 0; l < length; ++l) to[l] /= 1 + std::exp(-to[l]);
        if (!present.defined()) continue;
        T* next = f.at<T>(present) + row * (width - 1);
        for (int64_t j = 0; j < width - 1; ++j) {
          const int64_t at = length + j - (width - 1);  // in x
          next[j] = at >= 0 ? from[at] : before ? before[length + j] : T{0};
        }
      }
    });
  };
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed<decltype(zero)>(c); })) c.reject_dtype(0);
  return kernel;
}

// In terms of Conv: with c = Conv(p, w) + bias, dc = dy act'(c), SiLU'(c) = s (1 + c (1 - s)), s =
// sigmoid(c).
void gradient(GradientContext& g) {
  const auto dims = g.dims(g.x(kWeight));
  if (!dims || dims->size() != 3 || !(*dims)[0].known() || !(*dims)[2].known())
    g.reject(
        "the shape of its weight is not known, and its gradient needs it; run ONNX shape inference on the "
        "model first");
  const int64_t channels = (*dims)[0].value, width = (*dims)[2].value;
  const auto dims_of = [&](const std::string& value, int64_t start, int64_t end) {
    return g("Shape", {value}, {{"start", start}, {"end", end}});
  };
  const Name count = g("Concat", {dims_of(g.x(0), 0, 2), g.int64s({width - 1})}, {{"axis", int64_t{0}}});
  const auto zeros = [&](Name shape) { return g("Expand", {g.scalar_like(g.x(0), 0), shape}); };
  const Name past = g.has_x(kPast) ? g.x(kPast) : zeros(count);
  const Name padded = g("Concat", {past, g.x(0)}, {{"axis", int64_t{2}}});
  const Attributes convolution = {{"group", channels}, {"kernel_shape", std::vector<int64_t>{width}}};
  Name dpadded;
  if (!g.dy(0).empty()) {
    Name dc = g.dy(0);
    if (const std::string activation = g.node().string_or("activation", "none"); activation != "none") {
      Names inputs = {padded, g.x(kWeight)};
      if (g.has_x(kBias)) inputs.push_back(g.x(kBias));
      const Expression product(g, g("Conv", inputs, convolution)), dy(g, dc);
      const Expression s = product.call("Sigmoid");
      dc = dy * s * (1.0 + product * (1.0 - s));
    }
    const Names made =
        g.emit("ConvGrad", {dc, padded, g.x(kWeight)}, g.has_x(kBias) ? 3 : 2, convolution, kMicrosoft);
    dpadded = made[0];
    if (g.needs(kWeight)) g.set(kWeight, made[1]);
    if (g.has_x(kBias) && g.needs(kBias)) g.set(kBias, made[2]);
  }
  if (!g.dy(1).empty()) {
    const Name state = g("Concat", {zeros(dims_of(g.x(0), 0, 3)), g.dy(1)}, {{"axis", int64_t{2}}});
    dpadded = dpadded.empty() ? state : g("Add", {dpadded, state});
  }
  const Names parts = g.emit(
      "Split", {dpadded, g("Concat", {g.int64s({width - 1}), dims_of(g.x(0), 2, 3)}, {{"axis", int64_t{0}}})},
      2, {{"axis", int64_t{2}}});
  if (g.has_x(kPast) && g.needs(kPast)) g.set(kPast, parts[0]);
  if (g.needs(0)) g.set(0, parts[1]);
}

ORTRAIN_OPERATOR({.type = "CausalConvWithState",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
