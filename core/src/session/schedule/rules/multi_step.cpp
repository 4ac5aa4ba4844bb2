#include <algorithm>
#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double factor(const ScheduleStep& s) {
  const std::vector<double>& at = s.list("milestones");
  const auto passed = std::count_if(at.begin(), at.end(), [&](double step) { return step <= s.step; });
  return std::pow(s["gamma"], static_cast<double>(passed));
}

ORTRAIN_SCHEDULE(MultiStep, {.name = "multi_step",
                             .formula = "f = gamma^(number of milestones up to t)",
                             .source = "PyTorch, MultiStepLR",
                             .settings = {{"milestones", kRequired, "steps at which the rate changes", 1,
                                           1e15, ScheduleValue::kList},
                                          {"gamma", 0.1, "factor of the rate at each milestone", 0}},
                             .factor = factor});

}  // namespace
}  // namespace ortrain
