// The derivative of the gradient of normalizations: LayerNormalization, its form without a mean, and
// BatchNormalization in training.
#pragma once

#include <string>
#include <vector>

#include "op/gradient_expression.h"
#include "op/opset.h"

namespace ortrain {

// Shared by the gradient operators of normalizations. Their inputs are dY, X, scale and the statistics, their
// outputs dX, dscale and, if there is a mean, dbias.
struct NormalizedAxes {
  std::vector<int64_t> group;       // the axes over which mean and variance are taken
  std::vector<int64_t> parameters;  // the axes along which scale and bias repeat
  std::vector<int64_t> lifted;      // the axes that Unsqueeze adds to scale and bias, so that they broadcast
};

// With h = (X - mean) s, g = dY scale, and P(w) = s (w - mean(w) - h mean(w h)), the change of h for a small
// change w of X, the gradients are dX = P(g), dscale = sum dY h, dbias = sum dY. Let u, v and b be the
// gradients of these three; s follows X as ds = -s^2 h / n dX, so
//
//     of dY:     scale P(u) + v h + b
//     of scale:  sum dY P(u)
//     of X:      P(v dY - s (u mean(g h) + g mean(u h))) - s h mean(u P(g))
//
// The formulas treat mean and s as functions of X, so the inputs mean and s get no gradient. Without a mean,
// P(w) is s (w - h mean(w h)), h is X s, and `mean` is empty. Mean and s have dimensions of 1 for the group's
// axes.
inline void normalization_grad_gradient(GradientContext& g, const NormalizedAxes& axes, Name mean,
                                        Name inverse_deviation) {
  const Expression dy(g, g.x(0)), x(g, g.x(1)), s(g, inverse_deviation);
  const auto value = [&](Name name) { return Expression(g, name); };
  const auto lift = [&](Name name) {
    return value(axes.lifted.empty() ? name : g.unsqueeze(name, axes.lifted));
  };
  const auto average = [&](const Expression& v) {
    if (g.opset() >= since::kReductionAxesAsInput) return value(g("ReduceMean", {v, g.int64s(axes.group)}));
    return v.call("ReduceMean", {{"axes", axes.group}});
  };
  const auto total = [&](const Expression& v) {
    return axes.parameters.empty() ? v : value(g.reduce_sum(v, axes.parameters, false));
  };
  const Expression h = mean.empty() ? x * s : (x - value(mean)) * s;
  const auto project = [&](const Expression& w) {
    const Expression rest = w - h * average(w * h);
    return s * (mean.empty() ? rest : rest - average(w));
  };
  const Expression scale = lift(g.x(2));

  std::vector<Expression> of_dy, of_x;
  if (const Name given = g.dy(0); !given.empty()) {
    const Expression u = value(given), through = dy * scale;
    const Expression moved = project(u);
    of_dy.push_back(scale * moved);
    if (g.needs(2)) g.set(2, total(dy * moved));
    of_x.push_back(-(project(s * (u * average(through * h) + through * average(u * h))) +
                     s * h * average(u * project(through))));
  }
  if (const Name given = g.dy(1); !given.empty()) {
    of_dy.push_back(lift(given) * h);
    of_x.push_back(project(lift(given) * dy));
  }
  if (const Name given = g.node().outputs.size() > 2 ? g.dy(2) : ""; !given.empty())
    of_dy.push_back(value(g("Expand", {lift(given), dy.call("Shape")})));
  const auto set_sum = [&](size_t i, const std::vector<Expression>& parts) {
    if (!g.needs(i) || parts.empty()) return;
    Expression sum = parts[0];
    for (size_t p = 1; p < parts.size(); ++p) sum = sum + parts[p];
    g.set(i, sum);
  };
  set_sum(0, of_dy);
  set_sum(1, of_x);
}

}  // namespace ortrain
