// Recomputation: activations are dropped after the forward pass and recomputed when the backward pass reads
// them, so a step takes less memory and more time. Chen et al., "Training deep nets with sublinear memory
// cost", 2016; Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization",
// 2020.
//
// The forward pass consists of the nodes that the requested outputs need; the other nodes are the backward
// pass. A recomputed node produces the same bits as the first time: the same kernel runs on the same values.
// Nodes with side effects or random numbers do not run twice. There are two exceptions: a batch normalization
// in training reuses the statistics of its first run, and a dropout reuses the mask of its first run.
//
// The first compilation of a Program shows how much memory each value takes, which nodes work in place,
// and roughly what they cost. With these numbers the memory of a choice of values to keep is estimated
// (program/step_estimate.h), and a choice is searched for (program/recompute_search.h). The nodes of the
// choice are compiled like any graph; a node that runs twice is cloned right before the backward node that
// needs it. If the result is too large, the search continues with a lower target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "program/recompute_search.h"
#include "program/step_estimate.h"

namespace ortrain {

// The memory and time that a Program needs, as found by compiling it.
struct Footprint {
  struct OfNode {
    size_t scratch = 0;   // bytes in use while it runs and at no other time
    double seconds = 0;   // roughly how long it takes
    int over = -1;        // the input whose memory its first output reuses
    bool alias = false;   // it does nothing: its output is its input with another shape
    bool folded = false;  // it does nothing: its outputs are known, whatever its inputs are
  };
  std::vector<OfNode> nodes;                      // in the order of the graph
  std::unordered_map<std::string, size_t> bytes;  // values; those that take no arena memory are left out
  size_t live = 0;                                // the largest sum of what is in use at once
};

// The memory budget that lets a Program choose: as little memory as costs about a sixteenth more time, or an
// eighth if less would save nothing or leave much memory in use.
inline constexpr size_t kAutomaticBudget = SIZE_MAX;

class Recomputation {
 public:
  // `outputs` are the requested values of the graph.
  Recomputation(const std::vector<Node>& nodes, const std::vector<std::string>& outputs,
                const Footprint& footprint);

  // The nodes, plus those that recompute dropped values, chosen so that according to the footprint at most
  // `bytes` are in use at once, at close to the least extra time. Nothing if no such choice was found.
  std::optional<std::vector<Node>> fit(size_t bytes);
  // The same, chosen so that the fewest bytes are in use with which the extra time is at most `seconds`.
  // Nothing if a tenth less memory takes more than that.
  std::optional<std::vector<Node>> least(double seconds);

 private:
  struct Value {
    size_t bytes = 0;
    int producer = -1;  // node
    int memory = -1;    // the value in whose memory it is, perhaps itself; -1: the arena has no memory for it
    bool must_keep = false, read_backward = false;
  };

  void number_values(const Footprint& footprint);
  void mark_forward();
  void mark_kept();
  RecomputationSearch make_search(const Footprint& footprint);
  bool is_dropped(const Kept& kept, const std::string& name) const;
  std::vector<Node> rewrite(const Kept& kept) const;

  const std::vector<Node>& nodes_;
  std::vector<std::vector<int>> inputs_, outputs_;  // of nodes: values; -1 where left out
  std::vector<char> forward_, folded_;              // nodes
  std::vector<Value> values_;
  std::unordered_map<std::string, int> index_;
  std::vector<int> wanted_;
  std::vector<int> numbers_;  // in the search, of values that have memory
  std::optional<RecomputationSearch> search_;
  double scale_ = 1;  // difference between estimated bytes and those of the footprint
};

}  // namespace ortrain
