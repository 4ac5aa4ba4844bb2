#include <cmath>
#include <numbers>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

// Where a step is in its cycle, from 0 to 1.
double part_of_cycle(const ScheduleStep& s) {
  const double first = s["cycle_steps"], growth = s["cycle_growth"];
  if (growth == 1) return std::fmod(s.step, first) / first;
  double start = 0, length = first;
  while (start + length <= s.step) {
    start += length;
    length *= growth;
  }
  return (s.step - start) / length;
}

double factor(const ScheduleStep& s) {
  const double least = s["min_factor"];
  return least + (1 - least) * (0.5 + 0.5 * std::cos(std::numbers::pi * part_of_cycle(s)));
}

ORTRAIN_SCHEDULE(
    CosineRestarts,
    {.name = "cosine_restarts",
     .formula =
         "f = min + (1 - min)·(1 + cos(π·t/length))/2, with t from the start of each cycle and its length",
     .source = "Loshchilov and Hutter, SGDR: stochastic gradient descent with warm restarts, 2017",
     .settings = {{"cycle_steps", kRequired, "steps of the first cycle", 1, 1e15, ScheduleValue::kWhole},
                  {"cycle_growth", 1,
                   "length of each cycle as a multiple of the previous one, such as 1 or 2", 1, 1e3,
                   ScheduleValue::kWhole},
                  {"min_factor", 0, "the smallest factor", 0}},
     .factor = factor});

}  // namespace
}  // namespace ortrain
