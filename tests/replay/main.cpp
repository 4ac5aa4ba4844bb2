// Replays recorded runs with the library:
//   replay FIXTURES PACKED NAME...
#include "replay.h"

int main(int count, char** arguments) { return replay_runs(count, arguments); }
