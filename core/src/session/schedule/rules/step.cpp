#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double factor(const ScheduleStep& s) { return std::pow(s["gamma"], std::floor(s.step / s["step_size"])); }

ORTRAIN_SCHEDULE(Step, {.name = "step",
                        .formula = "f = gamma^⌊t/step_size⌋",
                        .source = "PyTorch, StepLR",
                        .settings = {{"step_size", kRequired, "steps between two changes", 1, 1e15,
                                      ScheduleValue::kWhole},
                                     {"gamma", 0.1, "factor of each change", 0}},
                        .factor = factor});

}  // namespace
}  // namespace ortrain
