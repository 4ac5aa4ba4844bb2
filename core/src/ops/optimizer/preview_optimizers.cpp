// Adagrad, Adam and Momentum of ai.onnx.preview.training: one optimizer step for any number of tensors.
//
//     inputs   R (learning rate), T (number of the step), then all X, all gradients G, and all of each state
//     outputs  all new X, then all of each new state
//
// With g = norm_coefficient x + G in all three,
//
//     Adagrad    h' = h + g²        x' = x - R / (1 + T decay_factor) g / (√h' + epsilon)
//     Adam       v' = α v + (1 - α) g        h' = β h + (1 - β) g²
//                x' = (1 - norm_coefficient_post) (x - R' v' / (√h' + epsilon)),
//                R' = R √(1 - β^T) / (1 - α^T) where T > 0, else R
//     Momentum   v' = α v + β' g, β' = β where T > 0, else 1
//                x' = x - R v' (standard) or x - R (g + α v') (nesterov)
#include <array>
#include <cmath>

#include "op/operator.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr const char* kPreviewTraining = "ai.onnx.preview.training";

// One element, its gradient g (with the term of norm_coefficient) and its states.
template <typename T>
struct Element {
  T x, g, s[2];
};

struct Adagrad {
  static constexpr size_t kStates = 1;
  double decay, epsilon;
  explicit Adagrad(const Node& node)
      : decay(static_cast<double>(node.float_or("decay_factor", 0))),
        epsilon(static_cast<double>(node.float_or("epsilon", 1e-6f))) {}
  double rate(double r, int64_t t) const { return r / (1 + static_cast<double>(t) * decay); }
  template <typename T>
  void step(Element<T>& e, T rate, bool) const {
    e.s[0] += e.g * e.g;
    e.x -= rate * e.g / (std::sqrt(e.s[0]) + static_cast<T>(epsilon));
  }
};

struct Adam {
  static constexpr size_t kStates = 2;
  double alpha, beta, epsilon, post;
  explicit Adam(const Node& node)
      : alpha(static_cast<double>(node.float_or("alpha", 0.9f))),
        beta(static_cast<double>(node.float_or("beta", 0.999f))),
        epsilon(static_cast<double>(node.float_or("epsilon", 1e-6f))),
        post(static_cast<double>(node.float_or("norm_coefficient_post", 0))) {}
  double rate(double r, int64_t t) const {
    const double steps = static_cast<double>(t);
    return t > 0 ? r * std::sqrt(1 - std::pow(beta, steps)) / (1 - std::pow(alpha, steps)) : r;
  }
  template <typename T>
  void step(Element<T>& e, T rate, bool) const {
    const T a = static_cast<T>(alpha), b = static_cast<T>(beta);
    e.s[0] = a * e.s[0] + (1 - a) * e.g;
    e.s[1] = b * e.s[1] + (1 - b) * e.g * e.g;
    e.x = (1 - static_cast<T>(post)) * (e.x - rate * e.s[0] / (std::sqrt(e.s[1]) + static_cast<T>(epsilon)));
  }
};

struct Momentum {
  static constexpr size_t kStates = 1;
  double alpha, beta;
  bool nesterov;
  explicit Momentum(const Node& node)
      : alpha(static_cast<double>(node.float_or("alpha", 0))),
        beta(static_cast<double>(node.float_or("beta", 0))),
        nesterov(node.string_or("mode", "") == "nesterov") {}
  double rate(double r, int64_t) const { return r; }
  template <typename T>
  void step(Element<T>& e, T rate, bool first) const {
    const T a = static_cast<T>(alpha), b = first ? T(1) : static_cast<T>(beta);
    e.s[0] = a * e.s[0] + b * e.g;
    e.x -= rate * (nesterov ? e.g + a * e.s[0] : e.s[0]);
  }
};

// The number of tensors.
template <class Rule>
size_t count_of(const NodeContext& c) {
  constexpr size_t kEach = 2 + Rule::kStates;
  c.expect(c.input_count() > 2 && (c.input_count() - 2) % kEach == 0, "after R and T it takes ",
           counted(kEach, "input"), " for each tensor, found ",
           c.input_count() - std::min<size_t>(c.input_count(), 2));
  return (c.input_count() - 2) / kEach;
}

// After R and T come n tensors, then their gradients and n of each state; outputs are the tensors and the
// states.
template <class Rule>
DType element_types(const ElementTypes& types, size_t o) {
  constexpr size_t kEach = 2 + Rule::kStates;
  const size_t count = types.node().inputs.size();
  return count < 2 + kEach ? DType::kUndefined : types[2 + o % ((count - 2) / kEach)];
}

template <class Rule>
void shape(ShapeContext& c) {
  const size_t n = count_of<Rule>(c);
  if (std::is_same_v<Rule, Momentum>) {
    const std::string mode = c.node().string_or("mode", "");
    c.expect(mode == "standard" || mode == "nesterov", "attribute mode must be standard or nesterov, found '",
             mode, "'");
    for (const char* name : {"alpha", "beta", "norm_coefficient"})
      c.expect(c.node().has(name), "attribute ", name, " is required but missing");
  }
  c.expect(c.size(0) == 1 && visit_floating(c.dtype(0), [](auto) {}),
           "R must be a single floating-point value, found ", to_string(c.dtype(0)), to_string(c.shape(0)));
  c.expect(c.size(1) == 1 && c.dtype(1) == DType::kInt64, "T must be a single int64, found ",
           to_string(c.dtype(1)), to_string(c.shape(1)));
  for (size_t i = 0; i < n; ++i) {
    const size_t x = 2 + i;
    for (size_t other = x + n; other < c.input_count(); other += n)
      c.expect(c.shape(other) == c.shape(x) && c.dtype(other) == c.dtype(x), "input ", other,
               " must match input ", x, ", ", to_string(c.dtype(x)), to_string(c.shape(x)), ", found ",
               to_string(c.dtype(other)), to_string(c.shape(other)));
    for (size_t part = 0; part <= Rule::kStates; ++part)
      if (c.has_output(part * n + i)) c.output(part * n + i, c.dtype(x), c.shape(x));
  }
}

template <class Rule>
Kernel kernel(KernelContext& c) {
  constexpr size_t kStates = Rule::kStates;
  const size_t n = count_of<Rule>(c);
  const Rule rule(c.node());
  const double norm = static_cast<double>(c.node().float_or("norm_coefficient", 0));
  const Slot r = c.in(0), t = c.in(1);
  const bool wide = c.dtype(0) == DType::kDouble;
  std::vector<Kernel> steps;
  for (size_t i = 0; i < n; ++i) {
    const Slot x = c.in(2 + i), g = c.in(2 + n + i);
    std::array<Slot, kStates> states, new_states;
    for (size_t k = 0; k < kStates; ++k) states[k] = c.in(2 + (2 + k) * n + i);
    const Slot new_x = c.has_output(i) ? c.out_inplace(i, {2 + i}) : Slot{};
    for (size_t k = 0; k < kStates; ++k)
      if (c.has_output((1 + k) * n + i))
        new_states[k] = c.out_inplace((1 + k) * n + i, {2 + (2 + k) * n + i});
    const int64_t size = c.size(2 + i);
    if (!visit_floating(c.dtype(2 + i), [&](auto zero) {
          using T = decltype(zero);
          steps.push_back([=](const Frame& f) {
            const int64_t step = *f.at<int64_t>(t);
            const double given = wide ? *f.at<double>(r) : static_cast<double>(*f.at<float>(r));
            const T rate = static_cast<T>(rule.rate(given, step));
            parallel_for(size, 8, [&](int64_t begin, int64_t end) {
              for (int64_t at = begin; at < end; ++at) {
                Element<T> e{f.at<T>(x)[at], f.at<T>(g)[at] + static_cast<T>(norm) * f.at<T>(x)[at], {}};
                for (size_t k = 0; k < kStates; ++k) e.s[k] = f.at<T>(states[k])[at];
                rule.step(e, rate, step <= 0);
                if (new_x.defined()) f.at<T>(new_x)[at] = e.x;
                for (size_t k = 0; k < kStates; ++k)
                  if (new_states[k].defined()) f.at<T>(new_states[k])[at] = e.s[k];
              }
            });
          });
        }))
      c.reject_dtype(2 + i);
  }
  return chain(std::move(steps));
}

#define ORTRAIN_OPTIMIZER(Rule)                                                           \
  ORTRAIN_OPERATOR({.domain = kPreviewTraining,                                           \
                    .type = #Rule,                                                        \
                    .rules = {.shape = shape<Rule>, .element_type = element_types<Rule>}, \
                    .traits = {.stops_gradient = true},                                   \
                    .kernels = {.cpu = kernel<Rule>}})
ORTRAIN_OPTIMIZER(Adagrad);
ORTRAIN_OPTIMIZER(Adam);
ORTRAIN_OPTIMIZER(Momentum);

}  // namespace
}  // namespace ortrain
