#include <algorithm>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double factor(const ScheduleStep& s) {
  const double left = std::max(0.0, (s.total - s.step) / std::max(1.0, s.total));
  return s["end_factor"] + (1 - s["end_factor"]) * left;
}

ORTRAIN_SCHEDULE(Linear, {.name = "linear",
                          .formula = "f = end + (1 - end)·(1 - t/total)",
                          .source = "PyTorch, LinearLR; onnxruntime-training, LinearLRScheduler",
                          .needs_total = true,
                          .settings = {{"end_factor", 0, "the factor at the end", 0}},
                          .factor = factor});

}  // namespace
}  // namespace ortrain
