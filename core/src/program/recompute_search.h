// The search of recomputation (program/recompute.h): which values of the forward pass to keep so that a step
// stays within a number of bytes, at close to the least extra time.
//
// The search is a greedy descent. It begins with a choice that keeps every value. Each move drops the results
// of the node that save the most memory for the time that recomputing them takes. All targets share the
// descent: a target uses the first choices that fit, and a lower target continues where the last target
// stopped. For some of these choices, dropped values are kept again as long as they fit, the most expensive
// first. Choices that keep only the values between segments of the forward pass are tried too.
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
  // The choice with the fewest bytes in use whose recomputation takes at most about `seconds`; nothing if
  // saving a tenth of the memory already takes longer.
  std::optional<Choice> least(double seconds);

 private:
  // The results of a node are dropped. With `keeps_inputs`, the inputs of the node are kept, so that only
  // this node is recomputed: an activation, for example, from the product before it.
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
