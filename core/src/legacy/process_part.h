// The part of a model that one of several processes trains.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "legacy/horizontal_split.h"
#include "legacy/training_graph.h"

namespace ortrain {

struct ProcessPart {
  Model model;
  TrainingGraphRequest request;            // for this part
  std::vector<std::string> received = {};  // inputs whose gradients become outputs, <input>_input_grad
  std::map<std::string, DividedWeight> divided = {};  // weights of which this is a part, by the part's name
  std::vector<std::string> warnings = {};

  // A stage of a pipeline before the last ends in values that the next stage reads.
  bool ends_in_loss() const;
};

// All of the model with one process, or if processes divide batches alone. Otherwise one stage of the
// pipeline (legacy/pipeline_stage.h) or a part of each layer (legacy/horizontal_split.h). Throws
// kInvalidArgument if the parameters of processes do not fit each other or the model.
ProcessPart process_part(const Model& forward, const TrainingGraphRequest& request);

}  // namespace ortrain
