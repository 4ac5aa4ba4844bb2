// The list of operators.
#include <string>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "op/operator.h"
#include "op/session_domain.h"

namespace ortrain::capi {

void ListOperators(OrtAllocator* allocator, char** out) {
  std::string lines;
  for (const Operator* op : all_operators()) {
    if (op->domain == kSessionDomain) continue;  // no model has it
    const Differentiable kind = op->differentiable();
    lines += concat(op->domain, ",", op->type, ",",
                    kind == Differentiable::kYes    ? "yes"
                    : kind == Differentiable::kStop ? "stop"
                    : op->rules.decompose           ? "decomposed"
                                                    : "no",
                    "\n");
  }
  *out = copy_text(allocator, lines);
}

}  // namespace ortrain::capi
