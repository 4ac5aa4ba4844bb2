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
// and roughly what they cost. With these numbers the memory of a choice of values to keep is estimated in
// microseconds, so thousands of choices are tried: segments of the forward pass of which only the
// boundaries are kept, and a greedy choice that repeatedly drops the results of the node that saves most
// memory for its time. Finally, values that still fit are kept after all. The nodes of the best choice are
// compiled like any graph; a node that runs twice is cloned right before the backward node that needs it. If
// the result is too large, the search is repeated with a lower target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"

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

// The memory budget that lets a Program choose: as little memory as costs about a tenth more time.
inline constexpr size_t kAutomaticBudget = SIZE_MAX;

class Recomputation {
 public:
  // `outputs` are the requested values of the graph.
  Recomputation(const std::vector<Node>& nodes, const std::vector<std::string>& outputs,
                const Footprint& footprint);

  // The nodes, plus those that recompute dropped values, chosen so that according to the footprint at most
  // `bytes` are in use at once, at close to the least extra time. Nothing if no such choice was found.
  std::optional<std::vector<Node>> fit(size_t bytes);

 private:
  using Kept = std::vector<char>;  // for each group, whether it is kept for the backward pass
  struct Estimate {
    size_t peak = 0;     // bytes in use at once
    double excess = 0;   // bytes above the target, summed over the steps
    double seconds = 0;  // of what is recomputed
  };
  struct Item {
    std::vector<int> inputs, outputs;  // values; -1 where left out
    Footprint::OfNode cost;
    bool forward = false;
  };
  struct Value {
    size_t bytes = 0;
    int producer = -1;
    int group = -1;  // values in the same memory with other shapes; -1: it is always in memory
  };

  // A node in the order of a step, for the first time or again.
  struct Run {
    int item;
    bool again;
  };

  // The results of an item are dropped. `keeps_inputs`: what the item reads is kept for that, so that it is
  // computed again from there and not from further back, as an activation from the product before it.
  struct Move {
    size_t item;
    bool keeps_inputs;
  };

  void mark_forward();
  void group_values();
  void mark_reads();
  bool is_dropped(const Kept& kept, int v) const;
  int input_of(const Kept& kept, const Run& run, size_t k) const;
  int output_of(const Run& run, size_t o) const;
  double order_runs(const Kept& kept);
  void find_last_uses(const Kept& kept);
  Estimate estimate(const Kept& kept, size_t target);
  std::optional<std::pair<Kept, Estimate>> search(size_t target);
  std::vector<Move> moves(const Kept& kept, size_t peak) const;
  std::vector<size_t> results_of(size_t item) const;
  std::vector<size_t> make_move(const Move& move, Kept& kept) const;
  static void undo(const std::vector<size_t>& changed, Kept& kept);
  bool drop_until_it_fits(Kept& kept, Estimate& now, size_t target, size_t goal);
  void keep_what_fits(Kept& kept, Estimate& now, size_t target);
  Kept segments(double bytes) const;
  std::vector<Node> rewrite(const Kept& kept) const;

  const std::vector<Node>& nodes_;
  std::vector<Item> items_;
  std::vector<Value> values_;
  std::unordered_map<std::string, int> index_;
  std::vector<int> wanted_;
  std::vector<std::vector<int>> groups_;  // their values
  std::vector<size_t> group_bytes_;
  std::vector<char> must_keep_, read_backward_;  // groups
  std::vector<int> last_forward_read_;           // of each group
  double scale_ = 1;    // difference between estimated bytes and those of the footprint
  long work_left_ = 0;  // nodes that this search may still visit
  // Working memory of estimate().
  std::vector<Run> order_;
  std::vector<int> root_, last_, stack_;
  std::vector<char> made_, taken_;
};

}  // namespace ortrain
