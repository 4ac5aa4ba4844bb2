// Decompositions: operators that are nothing but other operators, one after the other. What fuses nodes of a
// model writes them (SkipLayerNormalization, FusedGemm, QLinearAdd). They are taken apart again before a
// gradient is built and before a model is run, so they need neither shape rule nor kernel nor gradient rule.
//
//     void decompose(DecompositionContext& e) { e.set(0, e("Add", {e.x(0), e.x(1)})); }
//     ORTRAIN_DECOMPOSITION("BiasAdd", decompose);
//
// An operator may have a kernel and a decomposition (LRNGrad). It is run by the kernel, and taken apart where
// a gradient is built, which then follows from those of its parts.
#pragma once

#include <string>
#include <vector>

#include "op/node_writer.h"
#include "op/operator.h"

namespace ortrain {

class DecompositionContext : public NodeWriter {
 public:
  // States the value of output o; all outputs that have a name must get one.
  virtual void set(size_t o, const std::string& value) = 0;
  // Whether a value is a sequence.
  virtual bool is_sequence(const std::string& value) const = 0;
  // States that `value` has the type and shape of `like`, where the nodes that make it do not tell.
  virtual void state_like(const std::string& value, const std::string& like) = 0;
};

// Registers a decomposition in the domain com.microsoft.
#define ORTRAIN_DECOMPOSITION(name, function) \
  ORTRAIN_OPERATOR({.domain = kMicrosoft, .type = name, .rules = {.decompose = function}})

}  // namespace ortrain
