// Runs vector kernels on every instruction set of this machine.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

#include "catch.h"

namespace ortrain {

// While it exists, kernels run on that instruction set, or on the next simpler one that they are compiled
// for.
class OnTarget {
 public:
  explicit OnTarget(int64_t target) { choose(target); }
  ~OnTarget() { choose(0); }
  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);  // 0: those of the machine
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

template <typename F>
void on_every_target(F&& f) {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  REQUIRE(targets != 0);
  for (int64_t bit = 0; bit < 63; ++bit) {
    if (!(targets >> bit & 1)) continue;
    const OnTarget on(int64_t{1} << bit);
    INFO("on " << hwy::TargetName(int64_t{1} << bit));
    f();
  }
}

}  // namespace ortrain
