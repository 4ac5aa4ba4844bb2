// What an operator is in a transformer: the recompute options of training graphs speak of these. An
// operator's file declares its role beside the operator.
//
//     ORTRAIN_OPERATOR_FACT(TransformerRole, "", "Softmax", TransformerRole::kSoftmax);
#pragma once

#include "op/operator_facts.h"

namespace ortrain {

enum class TransformerRole { kNone, kGelu, kSoftmax, kDropout };

inline TransformerRole transformer_role(const Node& node) {
  const TransformerRole* role = OperatorFacts<TransformerRole>::find(node);
  return role ? *role : TransformerRole::kNone;
}

}  // namespace ortrain
