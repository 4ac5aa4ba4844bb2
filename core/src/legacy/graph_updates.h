// What a process updates: its weights or, with ZeRO, parts of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "legacy/graph_draft.h"

namespace ortrain {

struct Update {
  std::string weight;  // whose settings it has
  std::string name;    // of the state
  std::string half;    // of the 16-bit copy; empty: none
  std::string gradient;
  int64_t first = 0, count = 0;  // the elements of the weight
  bool whole = true;
};

// Adds the states of all weights, and of the parts that are updated.
std::vector<Update> add_updated_states(GraphDraft& d);

}  // namespace ortrain
