// Changes ONNX models the way files go wrong: attributes, shapes, types, arities, edges, subgraphs,
// functions, initializers and external data. What comes out is still a model that can be parsed, so that most
// inputs get past the parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "onnx-ml.pb.h"

namespace ortrain::fuzz {

// The file beside the models, for initializers with external data, and its size.
inline constexpr const char* kExternalFile = "data.bin";
inline constexpr size_t kExternalBytes = 256;

using Random = std::minstd_rand;

// A number below `n`, which must be positive.
size_t below(Random& random, size_t n);

// Changes one thing of the model. `operators` are domains and types that a node may be given besides those
// that the model has.
void mutate_model(onnx::ModelProto& model, Random& random,
                  const std::vector<std::pair<std::string, std::string>>& operators = {});

// Takes something of `from` into `model`: a node, an attribute, an initializer or the declaration of a value.
void cross_models(onnx::ModelProto& model, const onnx::ModelProto& from, Random& random);

// Changes the shape, the type or the values.
void mutate_tensor(onnx::TensorProto& tensor, Random& random);

// Numbers at which arithmetic on sizes and indices goes wrong, and small ones.
int64_t interesting_integer(Random& random);
double interesting_float(Random& random);

}  // namespace ortrain::fuzz
