#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double factor(const ScheduleStep& s) {
  const double given = s["timescale"];
  const double scale = given > 0 ? given : s.warmup > 0 ? s.warmup : 10000;
  return 1 / std::sqrt(1 + s.step / scale);
}

ORTRAIN_SCHEDULE(
    InverseSqrt,
    {.name = "inverse_sqrt",
     .formula = "f = √(timescale / (t + timescale))",
     .source = "Vaswani et al., Attention is all you need, 2017; as in Hugging Face transformers",
     .settings = {{"timescale", 0,
                   "steps; 0 stands for the steps of the warmup, or for 10000 without a warmup", 0}},
     .factor = factor});

}  // namespace
}  // namespace ortrain
