// Writes models in ORT format, the FlatBuffers form of an ONNX model (graph/ort_model.fbs).
#pragma once

#include <filesystem>
#include <string>

#include "graph/graph.h"

namespace ortrain {

// The model with the types of all its values, as the format demands, and its constants as initializers. It is
// in version 6 of the format if ONNX states the type parameters of all its operators. For other operators
// they are not known here: then it is in version 4, whose readers take them from their own schemas. The
// model's signatures have to be checked before (op/signature.h).
//
// Throws kNotImplemented for optional values and for attributes that are types, which the format does not
// have, and kFail if the file would be larger than 2 GB.
std::string write_ort_model(const Model& model);

// Writes it to a file: temporary file, sync, rename.
void write_ort_model(const Model& model, const std::filesystem::path& path);

}  // namespace ortrain
