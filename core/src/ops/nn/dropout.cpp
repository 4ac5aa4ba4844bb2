// Dropout and DropoutGrad; BitmaskDropout and BitmaskDropoutGrad (com.microsoft), whose mask has one bit per
// element, 32 in a uint32, lowest first. In training each element is kept with probability 1 - ratio, and
// elements that are kept are divided by that probability.
//
// N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.
// Whether an element is kept depends only on the seed, the node, the number of the run and the element's
// position.
#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>

#include "backend/cpu/dropout_random.h"
#include "backend/cpu/tuning.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/dropout.h"
#include "runtime/random.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kBlocks = tuning::kDraws;

Shape bitmask_shape(const NodeContext& c) { return {(c.size(0) + 31) / 32}; }

template <bool Bits>
void shape(ShapeContext& c) {
  // Before version 7 Dropout drops elements unless the attribute is_test is set.
  c.expect(
      c.opset() >= since::kDropoutInference || !c.node().domain.empty() || c.node().int_or("is_test", 0) != 0,
      "opset 6 Dropout is supported for inference only, found is_test = 0");
  expect_scalar(c, 1, "ratio");
  expect_scalar(c, 2, "training_mode");
  c.output(0, c.dtype(0), c.shape(0));
  if (!c.has_output(1)) return;
  if (Bits)
    c.output(1, DType::kUInt32, bitmask_shape(c));
  else
    c.output(1, c.opset() < since::kBoolDropoutMask ? c.dtype(0) : DType::kBool, c.shape(0));
}

template <typename T>
Kernel typed(KernelContext& c, bool bits) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const DropoutMode mode(c, 1, 2);
  const Slot x = c.in(0), y = c.out_inplace(0, {0}), mask = c.has_output(1) ? c.out(1) : Slot{};
  const int64_t n = c.out_size(0);
  const bool mask_is_bool = !bits && c.opset() >= since::kBoolDropoutMask;
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
      if (mask.defined() && bits) std::fill_n(f.at<uint32_t>(mask), (n + 31) / 32, ~uint32_t{0});
      if (mask.defined() && !mask_is_bool && !bits) std::fill_n(f.at<T>(mask), n, T{1});
      return;
    }
    const T scale = static_cast<T>(1 / (1 - ratio));
    const uint32_t limit = drop_limit(ratio);
    bool* kept_out = mask.defined() && !bits ? f.at<bool>(mask) : nullptr;
    uint32_t* bits_out = mask.defined() && bits ? f.at<uint32_t>(mask) : nullptr;
    const uint64_t key = fixed ? *fixed : static_cast<uint64_t>(seed());
    // The counter: node and run in the upper half, position in the lower. One draw serves four elements.
    const uint64_t high = dropout_counter(stream, f.run());
    const int64_t draws = (n + 3) / 4;
    // Each thread's share starts at a word of the bitmask.
    parallel_for((draws + 7) / 8, 64, [&](int64_t begin, int64_t end) {
      uint32_t words[4 * kBlocks];
      end = std::min(8 * end, draws);
      for (int64_t block = 8 * begin; block < end; block += kBlocks) {
        const int64_t blocks = std::min(kBlocks, end - block);
        random_words(key, high, static_cast<uint64_t>(block), blocks, words);
        const int64_t first = 4 * block, count = std::min(4 * blocks, n - first);
        const T* u = from + first;
        T* v = to + first;
        if (kept_out)
          for (int64_t k = 0; k < count; ++k) kept_out[first + k] = is_kept(words[k], limit);
        if (bits_out)
          for (int64_t k = 0; k < count; k += 32) {
            uint32_t word = 0;
            for (int64_t j = 0; j < std::min<int64_t>(32, count - k); ++j)
              word |= static_cast<uint32_t>(is_kept(words[k + j], limit)) << j;
            bits_out[(first + k) / 32] = word;
          }
        // Bits instead of a branch, which would be mispredicted as often as an element is dropped.
        for (int64_t k = 0; k < count; ++k) {
          const Bits kept = Bits{0} - static_cast<Bits>(is_kept(words[k], limit));
          v[k] = std::bit_cast<T>(std::bit_cast<Bits>(u[k] * scale) & kept);
        }
      }
    });
  };
}

template <bool Bits>
Kernel kernel(KernelContext& c) {
  // Before version 12 Dropout only marks where a framework dropped elements in training.
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed<decltype(zero)>(c, Bits); }))
    c.reject_dtype(0);
  return kernel;
}

template <bool Bits>
void gradient(GradientContext& g) {
  if (!Bits && g.opset() < since::kDropoutInputs) {
    g.set(0, g.dy(0));  // a Dropout before version 12 returns its input
    return;
  }
  Names inputs = {g.dy(0), g.want_y(1)};
  for (size_t i = 1; i < 3; ++i) inputs.push_back(g.has_x(i) ? g.x(i) : "");
  while (inputs.back().empty()) inputs.pop_back();
  g.set(0, g(Bits ? "BitmaskDropoutGrad" : "DropoutGrad", inputs, {}, kMicrosoft));
}

// DropoutGrad: dx = dy / (1 - ratio) where the mask is set, else 0; dx = dy if the node is not in training
// mode.
template <bool Bits>
void gradient_shape(ShapeContext& c) {
  const Shape wanted = Bits ? bitmask_shape(c) : c.shape(0);
  const DType type = Bits ? DType::kUInt32 : DType::kBool;
  c.expect(c.dtype(1) == type && c.shape(1) == wanted, "the mask must be ", to_string(type),
           to_string(wanted), " for dY of shape ", to_string(c.shape(0)), ", found ", to_string(c.dtype(1)),
           to_string(c.shape(1)));
  expect_scalar(c, 2, "ratio");
  expect_scalar(c, 3, "training_mode");
  shape_like_first(c);
}

template <typename T>
Kernel typed_gradient(KernelContext& c, bool bits) {
  const DropoutMode mode(c, 2, 3);
  const Slot dy = c.in(0), mask = c.in(1), dx = c.out_inplace(0, {0});
  const int64_t n = c.out_size(0);
  return [=](const Frame& f) {
    const double ratio = mode.ratio(f);
    const T scale = static_cast<T>(1 / (1 - ratio));
    const T* from = f.at<T>(dy);
    if (bits) {
      const uint32_t* words = f.at<const uint32_t>(mask);
      T* to = f.at<T>(dx);
      parallel_for(n, 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = words[i / 32] >> (i % 32) & 1 ? from[i] * scale : T{0};
      });
      return;
    }
    const bool* kept = f.at<bool>(mask);
    T* to = f.at<T>(dx);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = kept[i] ? from[i] * scale : T{0};
    });
  };
}

template <bool Bits>
Kernel gradient_kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed_gradient<decltype(zero)>(c, Bits); }))
    c.reject_dtype(0);
  return kernel;
}

// The mask was a factor before version 10.
DType element_types(const ElementTypes& types, size_t o) {
  return o == 0 || types.opset() < since::kBoolDropoutMask ? types[0] : DType::kBool;
}

// Uses the mask of the first run.
std::optional<Node> repeat(const Node& node, const FirstOutput& first) {
  if (!node.has_output(1)) return std::nullopt;
  Node again = node;
  again.domain = kMicrosoft;
  again.op_type = "DropoutGrad";
  again.inputs.insert(again.inputs.begin() + 1, first(1));
  again.outputs.resize(1);
  again.attributes.clear();
  return again;
}

ORTRAIN_OPERATOR(
    {.type = "Dropout",
     .rules = {.shape = shape<false>, .gradient = gradient<false>, .element_type = element_types},
     .traits = {.impure = true, .positions = elementwise_positions, .repeat = repeat},
     .kernels = {.cpu = kernel<false>}});

// DropoutGrad is linear in dY, so its gradient is a DropoutGrad with the same mask.
template <bool Bits>
void grad_gradient(GradientContext& g) {
  std::vector<std::string> inputs = g.node().inputs;
  inputs[0] = g.dy(0);
  g.set(0, g(Bits ? "BitmaskDropoutGrad" : "DropoutGrad", inputs, g.node().attributes, kMicrosoft));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "DropoutGrad",
                  .signature = "dy, mask, ratio?, training_mode? -> dx",
                  .rules = {.shape = gradient_shape<false>, .gradient = grad_gradient<false>},
                  .kernels = {.cpu = gradient_kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BitmaskDropout",
                  .signature = "data, ratio?, training_mode? -> output, mask?",
                  .rules = {.shape = shape<true>,
                            .gradient = gradient<true>,
                            .element_type = first_like_input<DType::kUInt32>},
                  .traits = {.impure = true},
                  .kernels = {.cpu = kernel<true>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BitmaskDropoutGrad",
                  .signature = "dy, mask, ratio?, training_mode? -> dx",
                  .rules = {.shape = gradient_shape<true>, .gradient = grad_gradient<true>},
                  .kernels = {.cpu = gradient_kernel<true>}});

// With operators of ONNX: the mask is all true outside of training.
void gradient_form(DecompositionContext& e) {
  const Expression dy(e, e.x(0)), mask(e, e.x(1));
  const Tensor* training = e.has_x(3) ? e.constant_value(e.x(3)) : nullptr;
  if (!e.has_x(3) || (training && !*training->data<bool>())) return e.set(0, e("Identity", {dy}));
  Expression factor = dy.number(2);  // for the default ratio
  if (e.has_x(2)) {
    const Tensor* ratio = e.constant_value(e.x(2));
    factor =
        ratio ? dy.number(1 / (1 - ratio->to_double().at(0))) : 1.0 / (1.0 - Expression(e, e.x(2)).as(dy));
  }
  if (!training) factor = Expression(e, e.x(3)).choose(factor, dy.number(1));
  e.set(0, mask.choose(dy * factor, dy.number(0)));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "DropoutGrad", {cold<gradient_form>});

}  // namespace

}  // namespace ortrain
