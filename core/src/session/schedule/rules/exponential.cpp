#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

ORTRAIN_SCHEDULE(Exponential, {.name = "exponential",
                               .formula = "f = gamma^t",
                               .source = "PyTorch, ExponentialLR",
                               .settings = {{"gamma", kRequired, "factor of the rate in each step", 0}},
                               .factor = [](const ScheduleStep& s) { return std::pow(s["gamma"], s.step); }});

}  // namespace
}  // namespace ortrain
