// One stage of a model whose stages are computed by different processes, one after the other.
//
// Y. Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019: a
// batch is cut into micro-batches; a stage computes its values for each of them, and in the backward pass
// computes them again from its inputs, so that between the passes it keeps no more than these.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "legacy/generated/training_parameters.h"

namespace ortrain {

struct PipelineStage {
  Model model;
  // A scalar whose gradients are those of the whole model: its loss in the last stage; before it, the sum
  // over the values for the next stage of the products with their gradients, which are inputs, <value>_grad.
  std::string loss;
  std::vector<std::string> received;  // from the stage before: inputs
  std::vector<std::string> sent;      // to the next stage: outputs
};

// The stage of this process. pipeline_cut_info_string has the cuts, separated by commas; a cut has the values
// that the next stage needs, separated by colons, each of which may end in a hyphen and the names of the
// nodes that read it there, separated by slashes. Throws kInvalidArgument where the cuts do not divide the
// model.
PipelineStage pipeline_stage(const Model& model, const TrainingParameters& parameters);

}  // namespace ortrain
