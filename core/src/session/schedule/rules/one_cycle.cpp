#include <algorithm>
#include <cmath>
#include <numbers>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double between(double from, double to, double part) {
  return to + (from - to) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

double factor(const ScheduleStep& s) {
  const double last = std::max(1.0, s.total - 1), top = s["rise"] * s.total - 1;
  const double start = 1 / s["start_divisor"], end = start / s["end_divisor"];
  if (s.step <= top) return between(start, 1, s.step / top);
  return between(1, end, std::min(1.0, (s.step - top) / (last - top)));
}

ORTRAIN_SCHEDULE(
    OneCycle,
    {.name = "one_cycle",
     .formula = "f rises from 1/start_divisor to 1 in the first part of the steps, then falls to "
                "1/(start_divisor·end_divisor), both along a cosine",
     .source =
         "Smith and Topin, Super-convergence: very fast training of neural networks using large learning "
         "rates, 2018; PyTorch, OneCycleLR",
     .needs_total = true,
     .settings = {{"rise", 0.3, "part of the steps in which the rate rises", 0, 1},
                  {"start_divisor", 25, "divisor of the rate at the start", 1},
                  {"end_divisor", 1e4, "rate at the start divided by the rate at the end", 1}},
     .factor = factor});

}  // namespace
}  // namespace ortrain
