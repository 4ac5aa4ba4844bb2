#include <algorithm>
#include <cmath>
#include <numbers>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double factor(const ScheduleStep& s) {
  const double part = std::min(1.0, s.step / s.total);
  return s["min_factor"] + (1 - s["min_factor"]) * (0.5 + 0.5 * std::cos(std::numbers::pi * part));
}

ORTRAIN_SCHEDULE(
    Cosine, {.name = "cosine",
             .formula = "f = min + (1 - min)·(1 + cos(π·t/total))/2",
             .source = "Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, 2017",
             .needs_total = true,
             .settings = {{"min_factor", 0, "the smallest factor", 0}},
             .factor = factor});

}  // namespace
}  // namespace ortrain
