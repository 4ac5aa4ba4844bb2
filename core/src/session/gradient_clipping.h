// GradientClipping: the limits of the gradients of an optimizer step.
//
// An optimizer model has a node for each limit: InplaceClipGradNorm of com.microsoft for the norm of all
// gradients together, as onnxruntime-training has it, and ClipGradients of the domain ortrain for the others,
// whose attribute `type` is
//     value       elements are clipped to [-limit, limit]
//     adaptive    the gradient of each parameter is scaled so that ‖g‖ ≤ limit · max(‖w‖, epsilon): A. Brock
//     et
//                 al., "High-performance large-scale image recognition without normalization", 2021, with one
//                 norm for a parameter instead of one for each of its units
//     group_norm  the gradients of each parameter group are scaled so that their norm is at most limit
// `value` and then `adaptive` change the gradients in place. The norms are those of the changed gradients.
#pragma once

#include <optional>
#include <string>

#include "backend/cpu/optimizer/optimizer_run.h"
#include "graph/graph.h"

namespace ortrain {

struct GradientClipping {
  std::optional<float> norm, group_norm, value, adaptive;
  float epsilon = 1e-3f;  // of adaptive

  // Reads the limit from a node and adds its errors to `problems`. Returns false if the node does not clip
  // gradients.
  bool read(const Node& node, std::string& problems);

  bool changes_gradients() const { return value || adaptive; }
  // Changes the gradients of one parameter.
  void change(const OptimizerRun& run) const;
};

}  // namespace ortrain
