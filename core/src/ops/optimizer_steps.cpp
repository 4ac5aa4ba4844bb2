// One step of an optimizer on one parameter as a node of a model (com.microsoft): SGDOptimizer and
// AdamOptimizer. Sessions that train have an optimizer of their own, which is faster.
#include "ops/expansion.h"
#include "ops/fusion_parts.h"
#include "ops/gradient_expression.h"
#include "ops/operator.h"

namespace ortrain {
namespace {

// W - ETA G, and the step -ETA G.
void sgd(ExpansionContext& e) {
  const Expression rate(e, cast_like(e, as_scalar(e, e.x(0)), e.x(1))), w(e, e.x(1)),
      g(e, cast_like(e, e.x(2), e.x(1)));
  const Expression step = -(rate * g);
  e.set(0, w + step);
  e.set(1, step);
}

// D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2014; weight decay of
// I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2017. With the gradient g of step T:
//     m' = alpha m + (1 - alpha) g,   v' = beta v + (1 - beta) g²
//     c = 1 - alpha^T, d = 1 - beta^T where do_bias_correction is set, else 1
//     mode 0:  w' = w - R (m'/c / (sqrt(v'/d) + epsilon) + lambda w)
//     mode 1:  u = w - R sqrt(d)/c m' / (sqrt(v') + epsilon),  w' = u - R lambda u
// The gradient was multiplied by loss_scale; where its norm, with that factor, is above max_norm_clip times
// the factor, it is shortened to max_norm_clip. Where update_signal is false nothing changes.
void adam(ExpansionContext& e) {
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

  Expression g(e, cast_like(e, e.x(3), w));
  if (e.has_x(7) || e.has_x(8)) {
    const Expression scale = e.has_x(7) ? scalar(7) : w.number(1);
    Expression divisor = scale;
    if (e.has_x(8)) divisor = (scalar(8) > scale * longest).choose(scalar(8) / longest, scale);
    g = g / divisor;
  }
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

ORTRAIN_EXPANSION("SGDOptimizer", sgd);
ORTRAIN_EXPANSION("AdamOptimizer", adam);

}  // namespace
}  // namespace ortrain
