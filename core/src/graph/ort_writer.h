// Writes models in ORT format, the FlatBuffers form of an ONNX model (graph/ort_model.fbs).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// The inputs and outputs of an operator that have one type, under the name of that type.
struct OnnxTypeParameter {
  std::string_view name;
  std::vector<std::pair<bool, uint32_t>> places;  // whether it is an output, and its index
};

// The properties of a node's operator that a file repeats.
struct OrtOperator {
  int64_t since = 1;                                    // the version that introduced its present form
  std::optional<std::vector<OnnxTypeParameter>> types;  // nothing: ONNX does not know the operator
  std::vector<int32_t> inputs;                          // how many of the node's inputs belong to each of its
};

// What the format demands and a graph does not know: graph/ knows no operators.
struct OrtFacts {
  // The model with its constants as initializers, and the types of all values that a graph reads or computes
  // in its value_info. Adds to `problems` each node whose outputs have no type, with the reason.
  Model (*with_types)(const Model& model, std::set<std::string>& problems);
  OrtOperator (*operator_of)(const Node& node, int64_t opset);
};

// The file is in version 6 of the format if ONNX states the type parameters of all operators. Otherwise it is
// in version 4, whose readers take them from their own schemas. The model's signatures have to be checked
// before (op/signature.h).
//
// Throws kNotImplemented for optional values and for attributes that are types, which the format does not
// have, kFail if the file would be larger than 2 GB, kInvalidGraph with the problems that `facts` adds.
std::string write_ort_model(const Model& model, const OrtFacts& facts);

}  // namespace ortrain
