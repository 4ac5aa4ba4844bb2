// Reading and writing ONNX files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "graph/graph.h"

namespace ortrain {

// Supported versions of the ONNX operators and of the file format.
inline constexpr int64_t kOldestOpset = 1, kNewestOpset = 28;
inline constexpr int64_t kOldestIrVersion = 3, kNewestIrVersion = 14;

// How large a model may be.
struct ModelLimits {
  size_t nodes = 1'000'000;  // those of subgraphs and of inlined functions included
  size_t nesting = 64;       // of subgraphs in subgraphs
};

// What else is checked before a model is returned; throws kInvalidGraph.
using ModelCheck = void (*)(const Model&);

// Reads a model. External data is looked up next to the file; functions of the model are inlined; the nodes
// are sorted. Throws kNoSuchFile, kInvalidProtobuf (not an ONNX model), kInvalidGraph (cycle, missing or
// doubled values, wrong sizes, more than the limits allow), kNotImplemented (string tensors and such, all
// named). `path` appears in messages.
Model read_model(const std::filesystem::path& path, const ModelLimits& limits = {},
                 ModelCheck check = nullptr);

// The same from memory. External data is looked up in `directory` and rejected if that is empty.
Model read_model(const void* data, size_t bytes, const std::string& origin = "model in memory",
                 const std::filesystem::path& directory = {}, const ModelLimits& limits = {},
                 ModelCheck check = nullptr);

// The serialized model. Throws if it would be larger than protobuf's limit of 2 GB.
std::string write_model(const Model& model);

// Writes the model to a file: temporary file, sync, rename.
void write_model(const Model& model, const std::filesystem::path& path);

}  // namespace ortrain
