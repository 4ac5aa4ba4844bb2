// Converts the protobuf form of a model to a Model.
#pragma once

#include <filesystem>

#include "graph/graph.h"
#include "graph/onnx_io.h"
#include "graph/onnx_proto.h"

namespace ortrain {

// Converts a parsed model: functions inlined, external data read from `folder`, nodes sorted. `proto` is
// consumed: large data is freed as soon as it is copied. Throws like read_model(), but without the name of
// the file.
Model convert_model(onnx::ModelProto& proto, const std::filesystem::path& folder, const ReadOptions& options);

}  // namespace ortrain
