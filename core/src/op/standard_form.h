// Standard forms: how a node is written with only operators of ONNX (opset 17 or later), for models that
// other runtimes run. An operator's file declares the form beside the operator; without one, the operator's
// decomposition (op/decomposition.h) is used.
//
//     void relu_grad_form(DecompositionContext& e) { ... e.set(0, ...); }
//     ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ReluGrad", {relu_grad_form});
#pragma once

#include "op/decomposition.h"
#include "op/operator.h"
#include "op/operator_facts.h"

namespace ortrain {

// The opset of ONNX that has Gelu.
inline constexpr int64_t kGeluSince = 20;

struct StandardForm {
  // Writes the nodes, and sets every named output.
  void (*write)(DecompositionContext& e) = nullptr;
  // Which nodes are replaced; null: all. For operators of ONNX that other runtimes support only in part.
  bool (*replaces)(const Node& node) = nullptr;
};

template <>
inline constexpr bool kIsNeeded<StandardForm> = kArtifactsPart.is_built;

// Whether ONNX has the operator. Operators that only use its domain state their own signature.
inline bool is_of_onnx(const Operator& op) {
  return (op.domain.empty() || op.domain == "ai.onnx.ml") && op.signature.empty();
}

}  // namespace ortrain
