// Signatures: how many inputs and outputs the nodes of an operator have, which of them may be left out, and
// of which kinds their attributes are.
//
// A signature is written as a text, with the parameters in order:
//
//     X, W, B? -> Y | group: int?, kernel_shape: ints?
//
//     B?       may be left out: empty, or missing at the end; so may every output but the first
//     x...     one or more to the end of the list
//     x...?    none or more; a parameter before it has its position in the list even if it is left out
//     x?...    one or more, of which some may be empty
//     to: int  an attribute that has to be there; with a ? after its kind, one that need not
//
// Those of ONNX's operators are generated (op/generated/onnx_signatures.h). Other operators declare theirs
// where they are registered; the operator itself checks attributes that its declaration does not list.
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
// ones, because onnxruntime accepts some operators in models of versions that do not have them, and rules
// accept newer forms. Empty if ONNX does not know the operator.
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

// How many of a node's inputs belong to each input of its operator's signature: one to each, and all others
// to the last. For an unknown operator, one for each of the node's inputs.
std::vector<int32_t> inputs_by_parameter(const Node& node, int64_t opset);

// Throws kInvalidGraph, naming every node, also of subgraphs, that does not have the form that its operator
// states, with what was expected and what was found. Unknown operators are ignored.
//
// The shape rule of an operator also checks the values of attributes, and those that are invalid whatever the
// inputs are show here: the rule is run with inputs of which nothing is known, up to the first thing that it
// asks about them. So passes, decompositions and gradient rules only see attributes that passed. A rule
// therefore checks attributes before it asks for a type, a shape or a value.
void check_signatures(const Model& model);

// read_model() for models whose operators are about to be used: with check_signatures().
Model load_model(const std::filesystem::path& path, ReadOptions options = {});
Model load_model(const void* data, size_t bytes, const std::string& origin = "model in memory",
                 ReadOptions options = {});

}  // namespace ortrain
