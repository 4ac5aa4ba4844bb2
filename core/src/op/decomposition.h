// Decompositions: operators that are equivalent to a sequence of other operators. Tools that fuse the nodes
// of a model produce them (SkipLayerNormalization, FusedGemm, QLinearAdd). They are decomposed before a
// gradient is built and before a model is run, so they need no shape rule, kernel or gradient rule.
//
//     void decompose(DecompositionContext& e) { e.set(0, e("Add", {e.x(0), e.x(1)})); }
//     ORTRAIN_DECOMPOSITION("BiasAdd", "X, bias, skip -> Y", decompose);
//
// An operator may have both a kernel and a decomposition (LRNGrad). The kernel runs it; it is decomposed only
// when a gradient is built, so its gradient follows from the gradients of its parts. With the trait
// decomposed_to_run, it is decomposed before a run instead (CastLike).
#pragma once

#include <string>
#include <vector>

#include "op/node_writer.h"
#include "op/operator.h"

namespace ortrain {

class DecompositionContext : public NodeWriter {
 public:
  // Sets the value of output o; every named output must get one.
  virtual void set(size_t o, const std::string& value) = 0;
  // Whether a value is a sequence.
  virtual bool is_sequence(const std::string& value) const = 0;
  // States that `value` has the type and shape of `like`, if the nodes that produce it do not
  // determine them.
  virtual void state_like(const std::string& value, const std::string& like) = 0;
};

// Registers a decomposition in the domain com.microsoft, with its signature (op/signature.h).
#define ORTRAIN_DECOMPOSITION(name, takes, function) \
  ORTRAIN_OPERATOR({.domain = kMicrosoft, .type = name, .signature = takes, .rules = {.decompose = function}})

}  // namespace ortrain
