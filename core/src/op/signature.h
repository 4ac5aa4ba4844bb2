// Signatures: how many inputs and outputs the nodes of an operator have, which of them may be left out, and
// of which kinds their attributes are.
//
// A signature is written as a text, with the parameters in order:
//
//     X, W, B? -> Y | group: int?, kernel_shape: ints?
//
//     B?       may be left out: empty, or missing at the end; so may every output but the first
//     x...     one or more to the end of the list
//     x...?    none or more; what stands before it has its place in the list, even if it is left out
//     x?...    one or more, of which some may be empty
//     to: int  an attribute that has to be there; with a ? after its kind, one that need not
//
// Those of ONNX's operators are generated (op/generated/onnx_signatures.h). Other operators declare theirs
// where they are registered; attributes that a declaration does not list are checked by the operator itself.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx_io.h"

namespace ortrain {

// What ONNX states of an operator in that version of its domain, and in newer ones, oldest first: onnxruntime
// accepts some operators before they exist, and rules here accept newer forms. Empty if ONNX does not know
// it.
std::vector<std::string_view> onnx_signatures(std::string_view domain, std::string_view type, int64_t opset);

// The version of its domain with which an operator of ONNX got the form that it has in that version; 0 if
// ONNX does not know it.
int64_t onnx_since(std::string_view domain, std::string_view type, int64_t opset);

// Throws kInvalidGraph, naming every node, also of subgraphs, that does not have the form that its operator
// states, with what was expected and what was found. Operators that nobody knows are left out.
void check_signatures(const Model& model);

// read_model() for models whose operators are about to be used: with check_signatures().
Model load_model(const std::filesystem::path& path, ReadOptions options = {});
Model load_model(const void* data, size_t bytes, const std::string& origin = "model in memory",
                 ReadOptions options = {});

}  // namespace ortrain
