// Replays recorded runs of onnxruntime-training 1.19.2 with the C++ interface, for systems on which Python
// does not run.
#pragma once

// `arguments` are those of a program: its name, FIXTURES, PACKED, and the names of the runs. FIXTURES is
// tests/data/fixtures, PACKED what tests/replay/pack.py wrote. Prints a line for each run. Returns 1 if a
// loss differs from the recorded one by more than 1e-4 of it, as in tests/session/test_fixtures.py, or if no
// run is named; otherwise 0.
int replay_runs(int count, char** arguments);
