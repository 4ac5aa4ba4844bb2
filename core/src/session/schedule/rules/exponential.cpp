#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

ORTRAIN_SCHEDULE(Exponential,
                 {.name = "exponential",
                  .formula = "f = gamma^t",
                  .source = "PyTorch, ExponentialLR",
                  .settings = {{"gamma", kRequired, "what the rate is multiplied by in each step", 0}},
                  .factor = [](const ScheduleStep& s) { return std::pow(s["gamma"], s.step); }});

}  // namespace
}  // namespace ortrain
