// What an operator is in a transformer: the recompute options of training graphs speak of these. An
// operator's file declares its role beside the operator.
//
//     ORTRAIN_TRANSFORMER_ROLE("", "Softmax", TransformerRole::kSoftmax);
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace ortrain {

enum class TransformerRole { kNone, kGelu, kSoftmax, kDropout };

TransformerRole transformer_role(const Node& node);

struct RegisterTransformerRole {
  RegisterTransformerRole(std::string_view domain, std::string_view type, TransformerRole role);
};
#define ORTRAIN_TRANSFORMER_ROLE(domain, type, role) \
  ORTRAIN_TRANSFORMER_ROLE_(__COUNTER__, domain, type, role)
#define ORTRAIN_TRANSFORMER_ROLE_(n, domain, type, role) ORTRAIN_TRANSFORMER_ROLE__(n, domain, type, role)
#define ORTRAIN_TRANSFORMER_ROLE__(n, domain, type, role) \
  static const ::ortrain::RegisterTransformerRole role_##n(domain, type, role)

}  // namespace ortrain
