// Reads models in ORT format, the FlatBuffers form of an ONNX model (graph/ort_model.fbs).
#pragma once

#include <cstddef>

#include "graph/onnx_proto.h"

namespace ortrain {

// The format versions that are read. The one that is written depends on the model (graph/ort_writer.h).
inline constexpr int kOldestOrtVersion = 1, kNewestOrtVersion = 6;

// True if the bytes begin like a file in ORT format.
bool is_ort_model(const void* data, size_t bytes);

// The same model as an ONNX message, whose raw data stay in `data`. Throws kFail (not in that format,
// truncated or damaged), kNotImplemented (a newer version of the format).
onnx::ModelProto parse_ort_model(const void* data, size_t bytes);

}  // namespace ortrain
