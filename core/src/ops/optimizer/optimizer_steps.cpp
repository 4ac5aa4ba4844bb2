// One step of an optimizer as a node of a model (com.microsoft): SGDOptimizer and AdamOptimizer on one
// parameter, LambOptimizer on any number. Training sessions have their own optimizer, which is faster.
#include <cmath>
#include <limits>

#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// W - ETA G, and the step -ETA G.
void sgd(DecompositionContext& e) {
  const Expression rate(e, cast_like(e, as_scalar(e, e.x(0)), e.x(1))), w(e, e.x(1)),
      g(e, cast_like(e, e.x(2), e.x(1)));
  const Expression step = -(rate * g);
  e.set(0, w + step);
  e.set(1, step);
}

// The gradient without the factor loss_scale (input `scale`); if its norm (input `norm`, which includes the
// factor) exceeds `longest` times the factor, the gradient is scaled to the norm `longest`.
Expression unscaled(DecompositionContext& e, const Expression& g, size_t scale_input, size_t norm_input,
                    double longest) {
  if (!e.has_x(scale_input) && !e.has_x(norm_input)) return g;
  const auto scalar = [&](size_t i) { return Expression(e, cast_like(e, as_scalar(e, e.x(i)), g)); };
  const Expression scale = e.has_x(scale_input) ? scalar(scale_input) : g.number(1);
  if (!e.has_x(norm_input)) return g / scale;
  return g / (scalar(norm_input) > scale * longest).choose(scalar(norm_input) / longest, scale);
}

// D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2014; weight decay of
// I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2017. With the gradient g of step T:
//     m' = alpha m + (1 - alpha) g,   v' = beta v + (1 - beta) g²
//     c = 1 - alpha^T, d = 1 - beta^T where do_bias_correction is set, else 1
//     mode 0:  w' = w - R (m'/c / (sqrt(v'/d) + epsilon) + lambda w)
//     mode 1:  u = w - R sqrt(d)/c m' / (sqrt(v') + epsilon),  w' = u - R lambda u
// Where update_signal is false nothing changes.
void adam(DecompositionContext& e) {
  const Node& node = e.node();
  const auto number = [&](const char* name, float otherwise) {
    return static_cast<double>(node.float_or(name, otherwise));
  };
  const double alpha = number("alpha", 0.9f), beta = number("beta", 0.999f), lambda = number("lambda", 0),
               epsilon = number("epsilon", 1e-8f), longest = number("max_norm_clip", 1);
  const int64_t mode = node.int_or("weight_decay_mode", 0);
  if (mode != 0 && mode != 1) e.reject(concat("weight_decay_mode must be 0 or 1, found ", mode));
  const Expression w(e, e.x(2)), m(e, cast_like(e, e.x(4), w)), v(e, cast_like(e, e.x(5), w));
  const auto scalar = [&](size_t i) { return Expression(e, cast_like(e, as_scalar(e, e.x(i)), w)); };

  const Expression g = unscaled(e, Expression(e, cast_like(e, e.x(3), w)), 7, 8, longest);
  const Expression rate = scalar(0), step = scalar(1);
  const Expression new_m = m * alpha + g * (1 - alpha), new_v = v * beta + g * g * (1 - beta);
  const bool correct = node.int_or("do_bias_correction", 1) != 0;
  const Expression c = correct ? 1.0 - w.number(alpha).call("Pow", step) : w.number(1);
  const Expression d = correct ? 1.0 - w.number(beta).call("Pow", step) : w.number(1);
  Expression new_w = w;
  if (mode == 0) {
    new_w = w - rate * (new_m / c / ((new_v / d).call("Sqrt") + epsilon) + w * lambda);
  } else {
    const Expression u = w - rate * d.call("Sqrt") / c * new_m / (new_v.call("Sqrt") + epsilon);
    new_w = u - rate * lambda * u;
  }
  const Expression next(e, e("Add", {e.x(1), e.constant(Tensor::scalar(int64_t{1}))}));
  const auto result = [&](size_t o, const Expression& value, const std::string& otherwise) {
    const std::string typed = cast_like(e, value, otherwise);
    e.set(o, e.has_x(9) ? e("Where", {as_scalar(e, e.x(9)), typed, otherwise}) : typed);
  };
  result(0, next, e.x(1));
  result(1, new_m, e.x(4));
  result(2, new_v, e.x(5));
  result(3, new_w, e.x(2));
  result(4, new_w - w, e.x(3));
  if (e.has_y(5)) {
    if (!e.has_x(6)) e.reject("new_mixed_precision_weights needs the input mixed_precision_weights");
    result(5, new_w, e.x(6));
  }
}

// Y. You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020, for groups
// of five inputs (weights w, gradients g, moments m and v, weights of 16 bits) behind update_signal,
// loss_scale, gradient_norm, the learning rate R and the step T:
//     m' = alpha m + (1 - alpha) g,   v' = beta v + (1 - beta) g²
//     c = 1 - alpha^T, d = 1 - beta^T where do_bias_correction is set, else 1
//     r = m'/c / (sqrt(v'/d) + epsilon) + lambda w
//     w' = w - R phi r,   phi = |w| / |r| between ratio_min and ratio_max; 1 where one of the norms is 0
// Outputs are T + 1, then for each group w', w' - w, m', v' and w' of 16 bits. The gradient was multiplied by
// loss_scale; where its norm is above max_norm_clip it is shortened, as by AdamOptimizer. Where update_signal
// is false nothing changes.
void lamb(DecompositionContext& e) {
  constexpr size_t kFirst = 5, kGroup = 5;  // inputs of the whole node, and of a group
  const Node& node = e.node();
  if (!e.has_x(3)) e.reject("input 3, the learning rate, is required but missing");
  if (node.inputs.size() <= kFirst || (node.inputs.size() - kFirst + kGroup - 1) / kGroup > 1024)
    e.reject(concat("it has ", node.inputs.size(), " inputs, expected 5 and then 1 to 1024 groups of 5"));
  const bool correct = node.int_or("do_bias_correction", 1) != 0 && e.has_x(4);
  const double ratio_min = node.float_or("ratio_min", -std::numeric_limits<float>::infinity()),
               ratio_max = node.float_or("ratio_max", std::numeric_limits<float>::infinity());
  const auto number = [&](const char* name, size_t group, float otherwise) -> double {
    const auto found = node.attributes.find(name);
    if (found == node.attributes.end()) return otherwise;
    const auto* all = std::get_if<std::vector<float>>(&found->second);
    if (!all) e.reject(concat("attribute '", name, "' must be a list of floats"));
    if (group >= all->size())
      e.reject(concat("attribute '", name, "' has ", all->size(),
                      " values, expected one for each group of weights"));
    return (*all)[group];
  };
  const auto kept_or = [&](const std::string& value, const std::string& otherwise) {
    return e.has_x(0) ? e("Where", {as_scalar(e, e.x(0)), value, otherwise}) : value;
  };
  if (e.has_y(0)) {
    if (!e.has_x(4)) e.reject("output 0, the next step, needs input 4, the step");
    e.set(0, kept_or(e("Add", {e.x(4), e.constant(Tensor::scalar(int64_t{1}))}), e.x(4)));
  }
  for (size_t group = 0, in = kFirst; in < node.inputs.size(); ++group, in += kGroup) {
    for (size_t k = 0; k < 4; ++k)
      if (!e.has_x(in + k))
        e.reject(concat("input ", in + k, " is missing: a group has weights, gradients and two moments"));
    const double alpha = number("alpha", group, 0.9f), beta = number("beta", group, 0.999f),
                 lambda = number("lambda", group, 0), epsilon = number("epsilon", group, 1e-6f),
                 longest = number("max_norm_clip", group, 1);
    const Expression w(e, e.x(in)), m(e, cast_like(e, e.x(in + 2), w)), v(e, cast_like(e, e.x(in + 3), w));
    const auto scalar = [&](size_t i) { return Expression(e, cast_like(e, as_scalar(e, e.x(i)), w)); };
    const Expression g = unscaled(e, Expression(e, cast_like(e, e.x(in + 1), w)), 1, 2, longest);
    const Expression new_m = m * alpha + g * (1 - alpha), new_v = v * beta + g * g * (1 - beta);
    Expression m_hat = new_m, v_hat = new_v;
    if (correct) {
      m_hat = new_m / (1.0 - w.number(alpha).call("Pow", scalar(4)));
      v_hat = new_v / (1.0 - w.number(beta).call("Pow", scalar(4)));
    }
    const Expression r = m_hat / (v_hat.call("Sqrt") + epsilon) + w * lambda;
    const auto norm = [&](const Expression& x) {
      return Expression(e, e("ReduceL2", {x}, {{"keepdims", int64_t{0}}}));
    };
    const Expression norm_w = norm(w), norm_r = norm(r);
    Expression phi = norm_w / norm_r;
    if (std::isfinite(ratio_min)) phi = phi.call("Max", phi.number(ratio_min));
    if (std::isfinite(ratio_max)) phi = phi.call("Min", phi.number(ratio_max));
    phi = (norm_w > 0.0 && norm_r > 0.0).choose(phi, phi.number(1));
    const Expression new_w = w - scalar(3) * phi * r;
    const auto result = [&](size_t k, const Expression& value) {
      const size_t o = in - kFirst + 1 + k;
      if (!e.has_y(o)) return;
      if (!e.has_x(in + k)) e.reject(concat("output ", o, " needs input ", in + k));
      e.set(o, kept_or(cast_like(e, value, e.x(in + k)), e.x(in + k)));
    };
    result(0, new_w);
    result(1, new_w - w);
    result(2, new_m);
    result(3, new_v);
    result(4, new_w);
  }
}

ORTRAIN_DECOMPOSITION(
    "LambOptimizer",
    "update_signal?, loss_scale?, gradient_norm?, R, T?, groups?... -> new_T?, new_groups...?", lamb);
ORTRAIN_DECOMPOSITION("SGDOptimizer", "ETA, W, G -> NW?, NG?", sgd);
ORTRAIN_DECOMPOSITION("AdamOptimizer",
                      "R, T, weights, gradients, moment_1, moment_2, mixed_precision_weights?, loss_scale?, "
                      "global_gradient_norm?, update_signal? -> new_T, new_moment_1, new_moment_2, "
                      "new_weights?, new_gradients?, new_mixed_precision_weights?",
                      adam);

}  // namespace
}  // namespace ortrain
