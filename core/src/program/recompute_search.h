// The search of recomputation (program/recompute.h): which values of the forward pass to keep so that a step
// stays within a number of bytes, at close to the least extra time.
//
// One greedy descent from keeping everything, which drops at each move the results of the node that save most
// memory for their time, serves all targets: a target takes its first choices that fit, and a lower target
// goes on where the last one stopped. Of some of these choices, values that still fit are kept after all, the
// most expensive first; so a choice from further down has dropped what is cheap, and keeps what is expensive.
// Choices that keep only the boundaries of segments of the forward pass are tried beside them.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "program/step_estimate.h"

namespace ortrain {

class RecomputationSearch {
 public:
  struct Values {
    std::vector<size_t> bytes;
    std::vector<char> must_keep, read_backward;
    std::vector<int> wanted;
  };
  struct Choice {
    Kept kept;
    StepCost cost;
  };

  RecomputationSearch(std::vector<StepNode> nodes, Values values);

  // The bytes in use at once if everything is kept.
  size_t whole() const { return whole_; }
  // A choice with at most `target` bytes in use at once; nothing if none was found.
  std::optional<Choice> within(size_t target);
  // The choice with the fewest bytes in use that computes again for at most about `seconds`; nothing if a
  // tenth less memory takes longer.
  std::optional<Choice> least(double seconds);

 private:
  // The results of a node are dropped. `keeps_inputs`: what the node reads is kept for that, so that it is
  // computed again from there and not from further back, as an activation from the product before it.
  struct Move {
    size_t node;
    bool keeps_inputs;
  };
  // A state of the descent: the values that changed since the state before, and its cost.
  struct State {
    std::vector<int> changed;
    size_t peak;
    double seconds;
  };

  std::vector<Move> moves() const;
  std::vector<int> make_move(const Move& move, Kept& kept) const;
  void descend(size_t target);
  bool descend_once(size_t target, size_t goal);
  std::vector<Choice> on_descent(size_t target) const;
  std::vector<Choice> of_segments(size_t target);
  bool drop_more(Choice& choice, size_t target, size_t goal);
  std::optional<Choice> start_anew(size_t target);
  bool descent_meets(double bytes, double seconds) const;
  Kept segments(double bytes) const;
  void drop_what_is_cheap(Choice& choice);
  void keep_what_fits(Choice& choice, size_t target);

  std::vector<StepNode> nodes_;
  Values values_;
  StepEstimate estimate_;
  std::vector<int> last_forward_read_;  // of values
  size_t whole_ = 0;
  Kept all_;
  // The descent.
  std::vector<State> states_;
  Kept now_;
  StepCost cost_;
  bool exhausted_ = false;
};

}  // namespace ortrain
