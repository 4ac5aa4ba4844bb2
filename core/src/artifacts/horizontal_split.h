// Layers of which each of several processes computes a part.
//
// M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism",
// 2019: of two products in a row, the weights of the first are divided by columns and those of the second by
// rows. What is between them is then divided too, without any exchange; the results of the second are added
// up. In attention, what is between them are the heads.
//
//     x ─▶ MegatronF ─▶ X W₁ₖ ─▶ activation, heads ─▶ H W₂ₖ ─▶ MegatronG ─▶ + bias
//
// Blocks are found by what their nodes compute (op/division.h): from a product with a weight, backwards, each
// node has to say how a share of its output follows from shares of its inputs. Everything that is in no such
// block is computed by all processes, from the same values with the same results.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "artifacts/generated/training_parameters.h"
#include "graph/graph.h"
#include "op/division.h"

namespace ortrain {

// A weight of which this process has a part.
struct DividedWeight {
  std::string name;  // of the whole
  Shape shape;       // of the whole
  Division division;
  bool rows = false;  // of the second product, otherwise columns of the first
};

struct HorizontalSplit {
  Model model;
  std::map<std::string, DividedWeight> weights;  // that can be trained, by the name of the part
  std::vector<std::string> warnings;
};

// The part of the model that this process has. Parts of a weight are named <weight>_column_rank_<r> and
// <weight>_row_rank_<r>. Throws kInvalidArgument where the model has no block that can be divided.
HorizontalSplit split_layers(const Model& model, const TrainingParameters& parameters);

// What a process has of a value.
Tensor part_of(const Tensor& whole, const Division& division, int64_t processes, int64_t process);

}  // namespace ortrain
