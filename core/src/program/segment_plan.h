// Planning a segment: which nodes of a graph can be compiled into one Program with what is known now, and
// what has to wait until that Program has run.
#pragma once

#include <deque>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "program/plan_graph.h"
#include "runtime/value.h"

namespace ortrain {

// What is known of a value.
struct KnownValue {
  enum class Kind {
    kConstant,  // its value, the same in every run that comes here
    kState,     // of the model: fixed memory whose contents change
    kTensor,
    kOther  // a sequence, or nothing
  } kind = Kind::kTensor;
  DType dtype = DType::kUndefined;
  Shape shape;
  Tensor constant = {};
  bool of_variant = false;  // a constant that is another one in the other variants
};

// By the numbers of values; null where nothing is known.
using KnownValues = std::vector<const KnownValue*>;

struct SegmentPlan {
  std::vector<const PlanNode*> nodes;    // of the Program
  std::vector<int> inputs;               // of the Program, among the given values
  std::vector<int> outputs;              // of the Program: what later nodes read
  std::vector<int> made;                 // of the request's outputs, those that the Program gives
  std::vector<int> shape_deciders;       // values that became constants: their contents belong to the key
  std::vector<const PlanNode*> dynamic;  // to be run behind the Program, one after another
  std::vector<const PlanNode*> rest;     // what comes after these
  // Whether it reads a constant of the variant, so that it serves no other.
  bool of_variant = false;
  // By the end of the Program. What was known before belongs to the plans before, which must outlive this.
  KnownValues known;
  std::shared_ptr<std::deque<KnownValue>> own;

  const KnownValue* find(int value) const {
    return value >= 0 && static_cast<size_t>(value) < known.size() ? known[static_cast<size_t>(value)]
                                                                   : nullptr;
  }
  // The value of a constant, null for everything else.
  const Tensor* constant(int value) const {
    const KnownValue* found = find(value);
    return found && found->kind == KnownValue::Kind::kConstant ? &found->constant : nullptr;
  }
};

struct SegmentRequest {
  PlanGraph* graph = nullptr;
  const SegmentPlan* before = nullptr;           // whose rest this is; null for the beginning of the graph
  const Tensors* states = nullptr;               // model state
  const Tensors* fixed = nullptr;                // constants beside the graph's initializers
  const Tensors* of_variant = nullptr;           // and those of the variant
  std::vector<std::pair<int, ValueRef>> values;  // known now, but others in the next run
  std::vector<int> outputs;                      // of the graph, those not made yet
  // Values that some kernel wants to know when it is made, though no shape depends on them.
  std::unordered_set<int> wanted;
  // First outputs of nodes that are to be left for the next segment.
  std::unordered_set<int> later;
};

// The nodes of a segment's Program that need not be compiled again when another run comes to the same point:
// all that they read and make has the shape, and where it is constant the value, that it had in the plan of
// another run, and no other node of the Program depends on them. By their first outputs.
std::unordered_set<int> unchanged_nodes(const SegmentPlan& plan, const SegmentPlan& other);

// Whether what was compiled for the rest of one plan serves that of the other: the same nodes, which read
// values of the same types and shapes.
bool same_rest(const SegmentPlan& plan, const SegmentPlan& other);

// Throws what shape rules throw. An `If` whose condition is a constant is replaced by its branch.
SegmentPlan plan_segment(const SegmentRequest& request);

}  // namespace ortrain
