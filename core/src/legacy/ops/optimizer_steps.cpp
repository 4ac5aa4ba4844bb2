// One step of an optimizer as a node of a training graph (com.microsoft): SGDOptimizer and AdamOptimizer on
// one parameter, LambOptimizer on any number. Where weights, moments and counts are state of the session,
// they are updated in place; the outputs are then the same memory's contents.
//
// Compiled for speed: loops over parameters (CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/strided_copy.h"
#include "legacy/rank_sum.h"
#include "op/operator.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// One number that a node reads when it runs.
struct Scalar {
  Slot slot;
  DType dtype = DType::kFloat;

  bool defined() const { return slot.defined(); }
  double at(const Frame& f) const {
    switch (dtype) {
      case DType::kDouble:
        return *f.at<double>(slot);
      case DType::kInt64:
        return static_cast<double>(*f.at<int64_t>(slot));
      case DType::kBool:
        return *f.at<bool>(slot) ? 1 : 0;
      default:
        return static_cast<double>(*f.at<float>(slot));
    }
  }
};

Scalar scalar(KernelContext& c, size_t i, const char* what) {
  if (!c.has_input(i)) return {};
  c.expect(c.size(i) == 1, "input ", i, ", ", what, ", must be one number, found ", to_string(c.dtype(i)),
           to_string(c.shape(i)));
  const DType dtype = c.dtype(i);
  if (dtype != DType::kFloat && dtype != DType::kDouble && dtype != DType::kInt64 && dtype != DType::kBool)
    c.reject_dtype(i);
  return {c.in(i), dtype};
}

// The divisor of the gradient of a step, and whether there is a step at all. The gradient was multiplied by
// loss_scale; where its norm, with that factor, is above `longest` times the factor, it is shortened to
// `longest`.
struct StepSignals {
  Scalar loss_scale, norm, update;

  StepSignals(KernelContext& c, size_t loss_scale_input, size_t norm_input, size_t update_input)
      : loss_scale(scalar(c, loss_scale_input, "the loss scale")),
        norm(scalar(c, norm_input, "the gradient norm")),
        update(scalar(c, update_input, "the update signal")) {}

  bool updates(const Frame& f) const { return !update.defined() || update.at(f) != 0; }
  double divisor(const Frame& f, double longest) const {
    const double scale = loss_scale.defined() ? loss_scale.at(f) : 1;
    if (!norm.defined() || !(norm.at(f) > scale * longest)) return scale;
    return norm.at(f) / longest;
  }
};

// A value that a step updates: the memory of an input, and the output that has the new value.
struct Updated {
  Slot state, shown;
  size_t bytes = 0;

  void show(const Frame& f) const {
    if (shown.defined()) copy_bytes(f.at<std::byte>(shown), f.at<std::byte>(state), bytes);
  }
};

// Weights with their gradients and moments. Weights may be stored in another order than row-major, in which
// case gradient and moments are too.
struct Parameters {
  DType dtype;
  int64_t n;
  Slot gradient;
  Updated weights, first, second, narrow;
  Slot change;  // the output w' - w

  OptimizerRun run(const Frame& f) const {
    return {dtype,
            f.at<std::byte>(weights.state),
            f.at<std::byte>(gradient),
            {f.at_or_null<std::byte>(first.state), f.at_or_null<std::byte>(second.state)},
            n};
  }
};

// Where the inputs and outputs of a parameter are in its node. kNone: there is no such thing.
struct Places {
  static constexpr size_t kNone = SIZE_MAX;
  size_t weights, gradient, first = kNone, second = kNone, narrow = kNone;
  size_t new_weights, change, new_first = kNone, new_second = kNone, new_narrow = kNone;
};

Parameters parameters_of(KernelContext& c, const Places& at) {
  Parameters p{c.dtype(at.weights), c.size(at.weights), {}, {}, {}, {}, {}, {}};
  if (p.dtype != DType::kFloat && p.dtype != DType::kDouble) c.reject_dtype(at.weights);
  const Slot weights = c.state(at.weights);
  LayoutPtr layout = c.in_layout(at.weights);
  if (layout && (layout->bf16() || c.in(at.weights, layout).index != weights.index)) layout = nullptr;
  const auto expect_alike = [&](size_t i) {
    c.expect(c.shape(i) == c.shape(at.weights) && c.dtype(i) == p.dtype, "input ", i, " is ",
             to_string(c.dtype(i)), to_string(c.shape(i)), ", expected ", to_string(p.dtype),
             to_string(c.shape(at.weights)), ", as the weights");
  };
  const auto updated = [&](size_t i, size_t o) {
    Updated u;
    if (i == Places::kNone || !c.has_input(i)) return u;
    expect_alike(i);
    u.state = i == at.weights ? weights : c.state(i);
    u.bytes = static_cast<size_t>(p.n) * size_of(p.dtype);
    if (c.has_output(o)) u.shown = c.out(o, layout);
    return u;
  };
  expect_alike(at.gradient);
  p.gradient = c.in(at.gradient, layout);
  p.weights = updated(at.weights, at.new_weights);
  p.first = updated(at.first, at.new_first);
  p.second = updated(at.second, at.new_second);
  p.narrow = updated(at.narrow, at.new_narrow);
  if (c.has_output(at.change)) p.change = c.out(at.change, layout);
  return p;
}

// Calls `step`, then fills in the outputs, which are the old values if nothing is updated.
template <typename Step>
void update(const Frame& f, const Parameters& p, bool updates, Step&& step) {
  const size_t bytes = static_cast<size_t>(p.n) * size_of(p.dtype);
  if (p.change.defined())
    copy_bytes(f.at<std::byte>(p.change), f.at<std::byte>(updates ? p.weights.state : p.gradient), bytes);
  if (updates) {
    step();
    if (p.narrow.state.defined())
      copy_bytes(f.at<std::byte>(p.narrow.state), f.at<std::byte>(p.weights.state), bytes);
    if (p.change.defined())
      visit_floating(p.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* w = f.at<T>(p.weights.state);
        T* change = f.at<T>(p.change);
        for (int64_t i = 0; i < p.n; ++i) change[i] = w[i] - change[i];
      });
  }
  for (const Updated* u : {&p.weights, &p.first, &p.second, &p.narrow}) u->show(f);
}

// Raises second moments above zero to `smallest`.
void raise(const OptimizerRun& run, double smallest) {
  visit_floating(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* v = reinterpret_cast<T*>(run.states[1]);
    const T least = static_cast<T>(smallest);
    for (int64_t i = 0; i < run.n; ++i) v[i] = v[i] > 0 ? std::max(v[i], least) : v[i];
  });
}

// The count of steps, an int64.
Updated count_of(KernelContext& c, size_t i, size_t o) {
  c.expect(c.dtype(i) == DType::kInt64 && c.size(i) == 1, "input ", i,
           ", the step, must be one int64, found ", to_string(c.dtype(i)), to_string(c.shape(i)));
  return {c.state(i), c.has_output(o) ? c.out(o) : Slot{}, sizeof(int64_t)};
}

// Output o has the type and shape of input inputs[o], if both exist.
void outputs_like(ShapeContext& c, std::initializer_list<size_t> inputs) {
  size_t o = 0;
  for (const size_t i : inputs) {
    if (c.has_output(o)) {
      c.expect(c.has_input(i), "output ", o, " needs input ", i);
      c.output(o, c.dtype(i), c.shape(i));
    }
    ++o;
  }
}

void expect_inputs(const NodeContext& c, size_t count) {
  for (size_t i = 0; i < count; ++i) c.expect(c.has_input(i), "input ", i, " is required but missing");
}

// ---------------------------------------------------------------------------------------------------------------------
// SGDOptimizer(ETA, W, G, loss_scale?, global_gradient_norm?, update_signal?, mixed_precision_weights?): W -
// ETA G, -ETA G, and the first in 16 bits. The optional inputs, which onnxruntime's operator lacks, are those
// of AdamOptimizer. Only with the attribute max_norm_clip are gradients shortened.

void sgd_shape(ShapeContext& c) {
  expect_inputs(c, 3);
  outputs_like(c, {1, 2, 6});
}

DType sgd_types(const ElementTypes& types, size_t o) { return types[o == 2 ? 6 : o + 1]; }

Kernel sgd_kernel(KernelContext& c) {
  const Scalar rate = scalar(c, 0, "the learning rate");
  const StepSignals signals(c, 3, 4, 5);
  const double longest = c.node().float_or("max_norm_clip", std::numeric_limits<float>::infinity());
  const Parameters p = parameters_of(
      c, {.weights = 1, .gradient = 2, .narrow = 6, .new_weights = 0, .change = 1, .new_narrow = 2});
  return [=](const Frame& f) {
    update(f, p, signals.updates(f), [&] { sgd(p.run(f), rate.at(f) / signals.divisor(f, longest)); });
  };
}

// ---------------------------------------------------------------------------------------------------------------------
// AdamOptimizer(R, T, weights, gradients, moment_1, moment_2, mixed_precision_weights?, loss_scale?,
// global_gradient_norm?, update_signal?) → T + 1, moments, weights, change of the weights, 16-bit weights.
//
// D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2014; weight decay of
// I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2017. With the gradient g of step T:
//     m' = alpha m + (1 - alpha) g,   v' = beta v + (1 - beta) g²
//     c = 1 - alpha^T, d = 1 - beta^T where do_bias_correction is set, else 1
//     mode 0:  w' = w - R (m'/c / (sqrt(v'/d) + epsilon) + lambda w)
//     mode 1:  u = w - R sqrt(d)/c m' / (sqrt(v') + epsilon),  w' = u - R lambda u
// Where update_signal is false nothing changes. Squares of gradients that are smaller than the attribute
// min_moment_2 are raised to it, so that moments of 16 bits do not become zero.

void adam_shape(ShapeContext& c) {
  expect_inputs(c, 6);
  outputs_like(c, {1, 4, 5, 2, 3, 6});
}

DType adam_types(const ElementTypes& types, size_t o) {
  constexpr size_t kInputs[] = {1, 4, 5, 2, 3, 6};
  return o < std::size(kInputs) ? types[kInputs[o]] : DType::kUndefined;
}

Kernel adam_kernel(KernelContext& c) {
  const Node& node = c.node();
  const int64_t mode = node.int_or("weight_decay_mode", 0);
  c.expect(mode == 0 || mode == 1, "weight_decay_mode must be 0 or 1, found ", mode);
  AdamWSettings attributes;
  attributes.alpha = node.float_or("alpha", 0.9f);
  attributes.beta = node.float_or("beta", 0.999f);
  attributes.epsilon = node.float_or("epsilon", 1e-8f);
  attributes.weight_decay = node.float_or("lambda", 0);
  attributes.correct_bias = node.int_or("do_bias_correction", 1) != 0;
  attributes.adam_mode = mode;
  const double longest = node.float_or("max_norm_clip", 1), smallest = node.float_or("min_moment_2", 0);
  const Scalar rate = scalar(c, 0, "the learning rate");
  const StepSignals signals(c, 7, 8, 9);
  const Parameters p = parameters_of(c, {.weights = 2,
                                         .gradient = 3,
                                         .first = 4,
                                         .second = 5,
                                         .narrow = 6,
                                         .new_weights = 3,
                                         .change = 4,
                                         .new_first = 1,
                                         .new_second = 2,
                                         .new_narrow = 5});
  const Updated count = count_of(c, 1, 0);
  return [=](const Frame& f) {
    update(f, p, signals.updates(f), [&] {
      int64_t& step = *f.at<int64_t>(count.state);
      const OptimizerRun run = p.run(f);
      adamw(run, adamw_factors(attributes, rate.at(f), step), 1 / signals.divisor(f, longest));
      if (smallest > 0) raise(run, smallest);
      ++step;
    });
    count.show(f);
  };
}

// ---------------------------------------------------------------------------------------------------------------------
// LambOptimizer: update_signal?, loss_scale?, gradient_norm?, the learning rate R and the step T, then groups
// of five inputs: weights w, gradients g, moments m and v, weights of 16 bits.
//
// Y. You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020:
//     m' = alpha m + (1 - alpha) g,   v' = beta v + (1 - beta) g²
//     c = 1 - alpha^T, d = 1 - beta^T where do_bias_correction is set, else 1
//     r = m'/c / (sqrt(v'/d) + epsilon) + lambda w
//     w' = w - R phi r,   phi = |w| / |r| between ratio_min and ratio_max; 1 where one of the norms is 0
// With the attribute `divided`, a weight's name, the group is a part of that weight, of which other processes
// have the rest, and the norms are those of the whole.
// Outputs are T + 1, then for each group w', w' - w, m', v' and w' of 16 bits. Where update_signal is false
// nothing changes. Nodes that share the step leave its output out, but for the last of them.

constexpr size_t kFirst = 5, kGroup = 5;  // inputs of the whole node, and of a group

size_t lamb_groups(const NodeContext& c) {
  const size_t count = c.input_count();
  const size_t groups = count <= kFirst ? 0 : (count - kFirst + kGroup - 1) / kGroup;
  c.expect(groups >= 1 && groups <= 1024, "it has ", counted(count, "input"),
           ", expected 5 and then 1 to 1024 groups of 5");
  return groups;
}

void lamb_shape(ShapeContext& c) {
  const size_t groups = lamb_groups(c);
  c.expect(c.has_input(3), "input 3, the learning rate, is required but missing");
  if (c.has_output(0)) {
    c.expect(c.has_input(4), "output 0, the next step, needs input 4, the step");
    c.output(0, c.dtype(4), c.shape(4));
  }
  for (size_t k = 0; k < groups * kGroup; ++k) {
    const size_t i = kFirst + k, o = 1 + k;
    c.expect(c.has_input(i) || k % kGroup == kGroup - 1, "input ", i,
             " is missing: a group has weights, gradients and two moments");
    if (!c.has_output(o)) continue;
    c.expect(c.has_input(i), "output ", o, " needs input ", i);
    c.output(o, c.dtype(i), c.shape(i));
  }
}

DType lamb_types(const ElementTypes& types, size_t o) { return types[o + kFirst - 1]; }

// The attribute's value for a group.
float of_group(const NodeContext& c, const char* name, size_t group, float otherwise) {
  const auto found = c.node().attributes.find(name);
  if (found == c.node().attributes.end()) return otherwise;
  const auto* all = std::get_if<std::vector<float>>(&found->second);
  c.expect(all != nullptr, "attribute '", name, "' must be a list of floats");
  c.expect(group < all->size(), "attribute '", name, "' has ", counted(all->size(), "value"),
           ", expected one for each group of weights");
  return (*all)[group];
}

Kernel lamb_kernel(KernelContext& c) {
  const Node& node = c.node();
  const bool correct = node.int_or("do_bias_correction", 1) != 0 && c.has_input(4);
  const double low = node.float_or("ratio_min", -std::numeric_limits<float>::infinity()),
               high = node.float_or("ratio_max", std::numeric_limits<float>::infinity()),
               smallest = node.float_or("min_moment_2", 0);
  const Scalar rate = scalar(c, 3, "the learning rate");
  const StepSignals signals(c, 1, 2, 0);
  struct Group {
    Parameters p;
    AdamWSettings adam;  // those for the direction, with neither decay nor rate
    double decay, longest;
  };
  std::vector<Group> groups;
  int64_t largest = 0;
  size_t width = 0;
  for (size_t g = 0, in = kFirst; g < lamb_groups(c); ++g, in += kGroup) {
    Group& group = groups.emplace_back();
    group.adam.alpha = of_group(c, "alpha", g, 0.9f);
    group.adam.beta = of_group(c, "beta", g, 0.999f);
    group.adam.epsilon = of_group(c, "epsilon", g, 1e-6f);
    group.adam.weight_decay = 0;
    group.adam.correct_bias = correct;
    group.decay = of_group(c, "lambda", g, 0);
    group.longest = of_group(c, "max_norm_clip", g, 1);
    const size_t out = in - kFirst + 1;
    group.p = parameters_of(c, {.weights = in,
                                .gradient = in + 1,
                                .first = in + 2,
                                .second = in + 3,
                                .narrow = in + 4,
                                .new_weights = out,
                                .change = out + 1,
                                .new_first = out + 2,
                                .new_second = out + 3,
                                .new_narrow = out + 4});
    largest = std::max(largest, group.p.n);
    width = std::max(width, size_of(group.p.dtype));
  }
  const std::string whole = node.string_or("divided", "");
  c.expect(whole.empty() || groups.size() == 1, "attribute 'divided' is for one group of weights, found ",
           groups.size());
  // Only a node with output 0 counts the steps.
  const Updated count = c.has_output(0) ? count_of(c, 4, 0) : Updated{};
  const Scalar step = count.state.defined() ? Scalar{count.state, DType::kInt64} : scalar(c, 4, "the step");
  const Slot direction = c.scratch(static_cast<size_t>(largest) * width);
  return [=](const Frame& f) {
    const bool updates = signals.updates(f);
    for (const Group& group : groups)
      update(f, group.p, updates, [&] {
        const OptimizerRun run = group.p.run(f);
        const auto t = step.defined() ? static_cast<int64_t>(step.at(f)) : 0;
        std::byte* r = f.at<std::byte>(direction);
        const double divisor = signals.divisor(f, group.longest);
        lamb_direction(run, adamw_factors(group.adam, 1, t), 1 / divisor, group.decay, r);
        if (smallest > 0) raise(run, smallest);
        double norm_w = norm(run.dtype, run.weights, run.n), norm_r = norm(run.dtype, r, run.n);
        if (!whole.empty()) {
          double squares[] = {norm_w * norm_w, norm_r * norm_r};
          sum_over_ranks(reinterpret_cast<std::byte*>(squares), 2, DType::kDouble, whole.c_str());
          norm_w = std::sqrt(squares[0]);
          norm_r = std::sqrt(squares[1]);
        }
        const double phi = norm_w > 0 && norm_r > 0 ? std::clamp(norm_w / norm_r, low, high) : 1;
        sgd({run.dtype, run.weights, r, {}, run.n}, rate.at(f) * phi);
      });
    if (updates && count.state.defined()) ++*f.at<int64_t>(count.state);
    count.show(f);
  };
}

// Bits 5 to 29 are those of five groups: a training graph has a node for each parameter.
constexpr uint32_t kLambUpdates = [] {
  uint32_t bits = 1u << 4;
  for (const size_t group : {0u, 1u, 2u, 3u, 4u})
    for (const size_t k : {0u, 2u, 3u, 4u}) bits |= 1u << (kFirst + group * kGroup + k);
  return bits;
}();

ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "LambOptimizer",
     .signature = "update_signal?, loss_scale?, gradient_norm?, R, T?, groups?... -> new_T?, new_groups...?",
     .rules = {.shape = lamb_shape, .element_type = lamb_types},
     .traits = {.stops_gradient = true,
                .impure = true,
                .updates = kLambUpdates,
                .optional_outputs = true,
                .any_order = 0xfu << kFirst},
     .kernels = {.cpu = lamb_kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "SGDOptimizer",
                  .signature = "ETA, W, G -> NW?, NG?",
                  .rules = {.shape = sgd_shape, .element_type = sgd_types},
                  .traits = {.stops_gradient = true,
                             .impure = true,
                             .updates = 1u << 1 | 1u << 6,
                             .optional_outputs = true,
                             .any_order = 3u << 1},
                  .kernels = {.cpu = sgd_kernel}});
ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "AdamOptimizer",
     .signature = "R, T, weights, gradients, moment_1, moment_2, mixed_precision_weights?, loss_scale?, "
                  "global_gradient_norm?, update_signal? -> new_T, new_moment_1, new_moment_2, "
                  "new_weights?, new_gradients?, new_mixed_precision_weights?",
     .rules = {.shape = adam_shape, .element_type = adam_types},
     .traits = {.stops_gradient = true,
                .impure = true,
                .updates = 1u << 1 | 1u << 2 | 1u << 4 | 1u << 5 | 1u << 6,
                .optional_outputs = true,
                .any_order = 0xfu << 2},
     .kernels = {.cpu = adam_kernel}});

}  // namespace
}  // namespace ortrain
