// Models that were built in memory.
#pragma once

#include "graph/graph.h"
#include "graph/onnx_io.h"

namespace ortrain {

// Checks a model as the reader of model files does, and returns it with its nodes sorted.
// Initializers keep their memory; given values replace them as they do in files. Throws like read_model().
Model checked_model(const Model& model, const ReadOptions& options = {});

}  // namespace ortrain
