// Planning a segment: which nodes of a graph can be compiled into one Program with what is known now, and
// which must wait until that Program has run.
//
// Nodes are visited with all that is known: shapes, constants, and the contents of values given or
// computed before. Nodes whose shape rule succeeds form the segment. A rule that needs the contents of an
// available value gets them, and they become part of the segment's key. A node whose rule needs a value
// that the segment itself computes waits, with all nodes that depend on it. A node never overtakes another
// node that reads or updates the same state of the model. An If whose condition is known is replaced by
// the branch that it takes.
//
// A segment that reads no constant of a variant of its model serves all variants: the forward pass of a
// training model is compiled once for the steps that overwrite gradients and for those that add to them.
#pragma once

#include <deque>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "program/limits.h"
#include "program/plan_graph.h"
#include "runtime/value.h"

namespace ortrain {

// The known facts about a value.
struct KnownValue {
  enum class Kind {
    kConstant,  // its value, the same in every run that reaches this segment
    kState,     // model state: fixed memory whose contents change
    kTensor,
    kOther  // a sequence, or nothing
  } kind = Kind::kTensor;
  DType dtype = DType::kUndefined;
  Shape shape;
  Tensor constant = {};
  bool of_variant = false;  // a constant that differs between variants
};

// By value number; null if nothing is known.
using KnownValues = std::vector<const KnownValue*>;

struct SegmentPlan {
  std::vector<const PlanNode*> nodes;    // of the Program
  std::vector<int> inputs;               // of the Program, among the given values
  std::vector<int> outputs;              // of the Program: what later nodes read
  std::vector<int> made;                 // those of the request's outputs that the Program produces
  std::vector<int> shape_deciders;       // values that became constants: their contents are part of the key
  std::vector<const PlanNode*> dynamic;  // to be run after the Program, one after another
  std::vector<const PlanNode*> rest;     // what comes after these
  // Whether it reads a constant of the variant, so that it cannot be used for others.
  bool of_variant = false;
  // At the end of the Program. What was known before is owned by the earlier plans, which must outlive this
  // one.
  KnownValues known;
  std::shared_ptr<std::deque<KnownValue>> own;

  const KnownValue* find(int value) const {
    return value >= 0 && static_cast<size_t>(value) < known.size() ? known[static_cast<size_t>(value)]
                                                                   : nullptr;
  }
  // The value of a constant; null for everything else.
  const Tensor* constant(int value) const {
    const KnownValue* found = find(value);
    return found && found->kind == KnownValue::Kind::kConstant ? &found->constant : nullptr;
  }
};

struct SegmentRequest {
  PlanGraph* graph = nullptr;
  const SegmentPlan* before = nullptr;  // the plan whose rest this is; null for the beginning of the graph
  const Tensors* states = nullptr;      // model state
  const Tensors* fixed = nullptr;       // constants besides the graph's initializers
  const Tensors* of_variant = nullptr;  // and those of the variant
  std::vector<std::pair<int, ValueRef>> values;  // known now, but different in the next run
  std::vector<int> outputs;                      // of the graph, those not produced yet
  // Values that some kernel needs when it is created, though no shape depends on them.
  std::unordered_set<int> wanted;
  // First outputs of nodes that are left for the next segment.
  std::unordered_set<int> later;
  ProgramLimits limits = {};
};

// The nodes of a segment's Program that need not be recompiled when another run reaches the same point. All
// that they read and produce has the same shape, and if constant the same value, as in the plan of another
// run, and no other node of the Program depends on them. Identified by their first outputs.
std::unordered_set<int> unchanged_nodes(const SegmentPlan& plan, const SegmentPlan& other);

// Whether what was compiled for the rest of one plan can be used for that of the other: the nodes are the
// same and read values of the same types and shapes.
bool same_rest(const SegmentPlan& plan, const SegmentPlan& other);

// Throws what shape rules throw. An `If` whose condition is a constant is replaced with its branch.
SegmentPlan plan_segment(const SegmentRequest& request);

}  // namespace ortrain
