// A training graph: a forward model with gradients, accumulation, gradient norm and optimizer in one graph.
// Its nodes update the initializers that training changes.
//
//     model ─▶ 16 bits? ─▶ gradients ─▶ recomputation? ─▶ accumulation? ─▶ norm? ─▶ one optimizer node per
//     weight
//
// If several processes train together, each has such a graph (legacy/ranks.h). It has two parts, which are
// run one after the other, each by fetching a separate output. The first ends in buffers for all
// gradients, states of role kGradient, which the host sums up over the processes. The second starts from
// these buffers and from their norm, which is an input, and updates the weights of this process.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "legacy/generated/training_parameters.h"

namespace ortrain {

// What a state is.
enum class StateRole {
  kWeight,
  kStatistics,      // of a normalization
  kMixedPrecision,  // the 16-bit copy of a weight
  kMoment1,
  kMoment2,
  kUpdateCount,  // of Adam, for each weight
  kStep,         // of Lamb, for all of them
  kGradient,     // accumulated
  kRandom,       // of random operators: seed, number of the next run
};
// Its name in the API: "weight", "Moment_1".
const char* to_string(StateRole role);

struct DividedWeight;  // legacy/horizontal_split.h

// An initializer that a run updates.
struct GraphState {
  std::string name;
  StateRole role;
  std::string weight;  // that it belongs to; empty: to all of them
  // A part of another state, as a view of its memory: the elements from the first on, as many as the value
  // has.
  std::string view_of = {};
  int64_t first = 0;
  bool hidden = false;                             // parts are shown instead
  std::shared_ptr<const DividedWeight> part = {};  // what it is a part of where layers are divided
};

// Values with which an optimizer starts, by weight and by name ("Moment_1"); of "shared_optimizer_state",
// "Step".
using InitialOptimizerState = std::map<std::string, std::map<std::string, Tensor>>;

struct TrainingGraphRequest {
  TrainingParameters parameters;
  InitialOptimizerState initial_state = {};
  // Mixed precision is left to the session, which stores values in bfloat16; otherwise it is float16 in the
  // graph.
  bool bf16 = false;
  // Those of the session: which passes are switched off (passes/pass.h).
  std::map<std::string, std::string> config = {};
  int optimization_level = 99;
};

struct TrainingGraph {
  Model model;  // the model's own outputs come first, then those that training adds
  std::vector<GraphState> states;
  std::string loss_scale_input;  // empty: none
  std::string training_mode;     // the input of dropouts that says whether they drop; empty: none
  std::string updated;           // the output of the second part; empty: the graph has one part
  bool recomputes = false;       // nodes occur twice, and must not be merged
  std::vector<std::string> warnings;
};

// Throws kInvalidArgument where the parameters do not fit the model or each other, kNotImplemented where the
// model cannot be trained.
TrainingGraph build_training_graph(const Model& forward, const TrainingGraphRequest& request);

}  // namespace ortrain
