// Expansions: operators that are nothing but other operators, one after the other. What fuses nodes of a
// model writes them (SkipLayerNormalization, FusedGemm, QLinearAdd). They are taken apart again before a
// gradient is built and before a model is run, so they need neither shape rule nor kernel nor gradient rule.
//
//     void expand(ExpansionContext& e) { e.set(0, e("Add", {e.x(0), e.x(1)})); }
//     ORTRAIN_EXPANSION("BiasAdd", expand);
//
// An operator may have a kernel and an expansion (LRNGrad). It is run by the kernel, and taken apart where a
// gradient is built, which then follows from those of its parts.
#pragma once

#include <string>
#include <vector>

#include "graph/node_writer.h"
#include "op/operator.h"

namespace ortrain {

class ExpansionContext : public NodeWriter {
 public:
  // States the value of output o; all outputs that have a name must get one.
  virtual void set(size_t o, const std::string& value) = 0;
  // Whether a value is a sequence.
  virtual bool is_sequence(const std::string& value) const = 0;
  // States that `value` has the type and shape of `like`, where the nodes that make it do not tell.
  virtual void state_like(const std::string& value, const std::string& like) = 0;
};

enum class ExpandFor { kRun, kGradient };

// Replaces all nodes of the model and its subgraphs whose operator is an expansion for that purpose. Nodes
// for which that cannot be done stay as they are; returns the reasons, each with the node's label, but for
// those that a kernel can run.
std::vector<std::string> expand_operators(Model& model, ExpandFor purpose);

// Registers an expansion in the domain com.microsoft.
#define ORTRAIN_EXPANSION(name, function) \
  ORTRAIN_OPERATOR({.domain = kMicrosoft, .type = name, .expand = function})

}  // namespace ortrain
