// The optimizers of a training graph: AdamOptimizer, LambOptimizer and SGDOptimizer, one node per weight.
#pragma once

#include <string>
#include <vector>

#include "legacy/accumulation.h"
#include "legacy/graph_draft.h"

namespace ortrain {

struct OptimizerKind {
  const char* type;
  bool moments, counts_per_weight, shares_step;
  std::vector<const char*> floats, ints;  // the attributes that the parameters may set for each weight
};

// Null if the parameters name none. Throws kInvalidArgument if the name or the attributes of a weight are not
// those of an optimizer.
const OptimizerKind* choose_optimizer(const GraphDraft& d);

// Adds the states of the optimizer, its nodes and, with accumulation, nodes that clear the gradients.
void add_updates(GraphDraft& d, const OptimizerKind& kind, const GradientNorm& norm);

}  // namespace ortrain
