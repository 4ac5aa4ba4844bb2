// Replays recorded runs with the kernels of each instruction set of this processor:
//   replay_instruction_sets FIXTURES PACKED NAME...
// The program contains the core, because the library always uses the best instruction set. Fails if a replay
// fails, or if the kernels were not compiled for an instruction set that the processor has.
#include <hwy/targets.h>

#include <cstdint>
#include <cstdio>

#include "replay.h"

int main(int count, char** arguments) {
  const int64_t processor = hwy::SupportedTargets();
  int failed = 0;
  for (const int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    const char* name = hwy::TargetName(target);
    if ((processor & target) == 0) {
      std::printf("skipped: this processor does not have %s\n", name);
    } else if ((HWY_TARGETS & target) == 0) {
      std::printf("FAILED: no kernels were compiled for %s, which this processor has\n", name);
      failed = 1;
    } else {
      std::printf("with the kernels for %s:\n", name);
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      failed |= replay_runs(count, arguments);
    }
  }
  return failed;
}
