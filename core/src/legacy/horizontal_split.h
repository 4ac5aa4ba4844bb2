// Divides layers among processes.
//
// M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism",
// 2019: of two products in a row, the weights of the first are divided by columns and those of the second by
// rows. The layers between them are then divided too, without any exchange; the results of the second
// product are added up. In attention, the layers between them are divided by heads.
//
//     x ─▶ MegatronF ─▶ X W₁ₖ ─▶ activation, heads ─▶ H W₂ₖ ─▶ MegatronG ─▶ + bias
//
// Blocks are found by what their nodes compute (legacy/partition.h): from a product with a weight, backwards,
// each node has to state how a share of its output follows from shares of its inputs. Everything outside such
// blocks is computed by all processes, from the same values with the same results.
//
// MegatronF passes values into a block, MegatronG adds up its results, and each is the gradient of the other.
// So the gradient builder, passes and Programs need to know nothing of the division. Blocks are recognized
// however an exporter writes them, and are divided only if every node in them has stated that it can be.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "legacy/generated/training_parameters.h"
#include "legacy/partition.h"

namespace ortrain {

// A weight of which this process has a part.
struct DividedWeight {
  std::string name;  // of the whole
  Shape shape;       // of the whole
  Partition partition;
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
Tensor part_of(const Tensor& whole, const Partition& partition, int64_t processes, int64_t process);

}  // namespace ortrain
