#include "session/output_types.h"

#include "infer/value_types.h"
#include "passes/decompose.h"

namespace ortrain {

std::vector<ValueInfo> output_types(const Model& model, bool name_all) {
  Model decomposed = model;
  // A node that cannot be decomposed is kept, and the types of values that depend on it are unknown.
  decompose_operators(decomposed, DecomposeFor::kRun);
  return inferred_outputs(decomposed, name_all);
}

}  // namespace ortrain
