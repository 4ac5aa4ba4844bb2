#include <algorithm>
#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

double factor(const ScheduleStep& s) {
  const double left = std::pow(std::max(0.0, 1 - s.step / s.total), s["power"]);
  return s["end_factor"] + (1 - s["end_factor"]) * left;
}

ORTRAIN_SCHEDULE(Polynomial,
                 {.name = "polynomial",
                  .formula = "f = end + (1 - end)·(1 - t/total)^power",
                  .source = "PyTorch, PolynomialLR",
                  .needs_total = true,
                  .settings = {{"power", 1, "exponent", 0}, {"end_factor", 0, "the factor at the end", 0}},
                  .factor = factor});

}  // namespace
}  // namespace ortrain
