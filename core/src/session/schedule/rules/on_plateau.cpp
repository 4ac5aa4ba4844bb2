#include <algorithm>
#include <cmath>

#include "session/schedule/rule.h"

namespace ortrain {
namespace {

void report(double value, const ScheduleSettings& settings, ScheduleScalars& scalars) {
  const auto setting = [&](const char* name) { return settings.find(name)->second.front(); };
  double &best = scalars["best"], &waited = scalars["waited"], &rest = scalars["rest"];
  double &reported = scalars["reported"], &factor = scalars["factor"];
  const bool up = setting("maximize") != 0, absolute = setting("absolute") != 0;
  const double threshold = up ? setting("threshold") : -setting("threshold");
  const double bound = absolute ? best + threshold : best * (1 + threshold);
  if (!std::isnan(value) && (reported == 0 || (up ? value > bound : value < bound))) {
    best = value;
    reported = 1;
    waited = 0;
  } else {
    ++waited;
  }
  if (rest > 0) {
    --rest;
    waited = 0;
  }
  if (waited > setting("patience")) {
    factor = std::max(factor * setting("gamma"), setting("min_factor"));
    rest = setting("cooldown");
    waited = 0;
  }
}

ORTRAIN_SCHEDULE(
    OnPlateau,
    {.name = "on_plateau",
     .formula =
         "f = max(f·gamma, min) after more than patience reported values that are no better than the best",
     .source = "PyTorch, ReduceLROnPlateau",
     .settings = {{"gamma", 0.1, "factor of each reduction", 0, 1},
                  {"patience", 10,
                   "reported values without improvement that are tolerated before a reduction", 0, 1e15,
                   ScheduleValue::kWhole},
                  {"threshold", 1e-4, "smallest improvement that counts, relative to the best value", 0},
                  {"absolute", 0, "whether the threshold is absolute instead of relative", 0, 1,
                   ScheduleValue::kFlag},
                  {"maximize", 0, "whether greater values are better", 0, 1, ScheduleValue::kFlag},
                  {"cooldown", 0, "reported values that are ignored after a reduction", 0, 1e15,
                   ScheduleValue::kWhole},
                  {"min_factor", 0, "the smallest factor", 0}},
     .scalars = {{"best", 0}, {"factor", 1}, {"reported", 0}, {"rest", 0}, {"waited", 0}},
     .factor = [](const ScheduleStep& s) { return s.scalar("factor"); },
     .report = report});

}  // namespace
}  // namespace ortrain
