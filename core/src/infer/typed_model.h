// Models that state the types of all their values, as files in ORT format do.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "graph/graph.h"

namespace ortrain {

// The model with its constants as initializers. The value_info of each graph has what is known about every
// value that the graph reads or computes. Adds to `problems` each node that cannot be run for any input, with
// the reason.
Model typed_model(const Model& model, std::set<std::string>& problems);

// The model in ORT format (graph/ort_writer.h), and in a file: temporary file, sync, rename.
std::string write_ort_model(const Model& model);
void write_ort_model(const Model& model, const std::filesystem::path& path);

}  // namespace ortrain
