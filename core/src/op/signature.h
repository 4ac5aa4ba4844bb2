// Signatures: how many inputs and outputs the nodes of an operator have, which of these may be left out, and
// the kinds of the attributes.
//
// A signature is written as a text, with the parameters in order:
//
//     X, W, B? -> Y | group: int?, kernel_shape: ints?
//
//     B?       may be left out: empty, or missing at the end; so may every output but the first
//     x...     one or more to the end of the list
//     x...?    none or more; a parameter before it has its position in the list even if it is left out
//     x?...    one or more, of which some may be empty
//     to: int  a required attribute; with a ? after its kind, an optional attribute
//
// The signatures of ONNX's operators are generated (op/generated/onnx_signatures.h). Other operators declare
// their signatures where they are registered; the operator itself checks attributes that its signature does
// not list.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx_io.h"
#include "graph/ort_writer.h"

namespace ortrain {

// The signatures of an operator in that version of its domain and in newer versions, the oldest first. Newer
// versions are included because onnxruntime accepts some operators in models of versions that do not have
// them, and because rules accept newer forms. Empty if ONNX does not know the operator.
std::vector<std::string_view> onnx_signatures(std::string_view domain, std::string_view type, int64_t opset);

// The version of a domain that introduced an operator in its present form, and the type parameters of that
// form as type_parameters() reads them: "T i0 i1 o0, V i2".
struct OnnxVersion {
  int64_t since;
  std::string_view types;
};
// The OnnxVersion of that operator in a model with that version of the domain. Nothing if ONNX does not know
// the operator.
std::optional<OnnxVersion> onnx_version(std::string_view domain, std::string_view type, int64_t opset);

std::vector<OnnxTypeParameter> type_parameters(std::string_view text);

// How many of a node's inputs belong to each parameter of its operator's signature: one input to each
// parameter, and all further inputs to the last parameter. For an unknown operator, each of the node's inputs
// is a parameter.
std::vector<int32_t> inputs_by_parameter(const Node& node, int64_t opset);

// Throws kInvalidGraph, naming every node, also of subgraphs, that does not have the form that its operator
// states, with the expected and the found form. Unknown operators are ignored.
//
// The shape rule of an operator also checks the values of attributes. check_signatures() runs the rule
// without information about the inputs, and the rule ends when it first asks about an input. This finds
// values that are invalid for all inputs, so passes, decompositions and gradient rules only see attributes
// that passed. A shape rule must therefore check attributes before it asks for a type, a shape or a value.
void check_signatures(const Model& model);

// read_model() for models whose operators are about to be used: with check_signatures().
Model load_model(const std::filesystem::path& path, ReadOptions options = {});
Model load_model(const void* data, size_t bytes, const std::string& origin = "model in memory",
                 ReadOptions options = {});

}  // namespace ortrain
