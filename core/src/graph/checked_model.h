// Models that were built in memory.
#pragma once

#include "graph/graph.h"
#include "graph/onnx_io.h"

namespace ortrain {

// The model as reading it from a file would give it: with all that the reader checks, its nodes sorted.
// Initializers keep their memory; given values replace them as they do in files. Throws like read_model().
Model checked_model(const Model& model, const ReadOptions& options = {});

}  // namespace ortrain
