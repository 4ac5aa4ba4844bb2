// The table of the operators to which the recompute options refer. It belongs to the older API, because no
// other part asks whether an operator is a Gelu or a Dropout.
#include "legacy/transformer_role.h"

#include "op/operator.h"
#include "op/operator_facts.h"

namespace ortrain {
namespace {

ORTRAIN_OPERATOR_FACT(TransformerRole, "", "Dropout", TransformerRole::kDropout);
ORTRAIN_OPERATOR_FACT(TransformerRole, "", "Softmax", TransformerRole::kSoftmax);
ORTRAIN_OPERATOR_FACT(TransformerRole, kMicrosoft, "BiasGelu", TransformerRole::kGelu);
ORTRAIN_OPERATOR_FACT(TransformerRole, kMicrosoft, "FastGelu", TransformerRole::kGelu);
ORTRAIN_OPERATOR_FACT(TransformerRole, "", "Gelu", TransformerRole::kGelu);
ORTRAIN_OPERATOR_FACT(TransformerRole, kMicrosoft, "Gelu", TransformerRole::kGelu);
ORTRAIN_OPERATOR_FACT(TransformerRole, kMicrosoft, "QuickGelu", TransformerRole::kGelu);

}  // namespace

TransformerRole transformer_role(const Node& node) {
  const TransformerRole* role = OperatorFacts<TransformerRole>::find(node);
  return role ? *role : TransformerRole::kNone;
}

}  // namespace ortrain
