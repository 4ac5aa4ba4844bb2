#import "ort_training_utils.h"

#import "ort_tables.h"

void ORTSetSeed(int64_t seed) {
  // Every number is a valid seed, so the call cannot fail.
  ORTGeneralTable()->ReleaseStatus(ORTTrainingTable()->SetSeed(seed));
}
