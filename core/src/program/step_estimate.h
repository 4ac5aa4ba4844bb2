// The memory and the time of a train step if some values of its forward pass are dropped and computed again
// where the backward pass reads them: found in microseconds, without compiling. The search of
// program/recompute_search.h tries thousands of such choices.
//
// Values are identified by numbers from 0 on. Values without memory have no number. A value that is another
// value under another name or shape has the number of that value. Nodes that do nothing are left out.
#pragma once

#include <cstddef>
#include <vector>

namespace ortrain {

// For each value, whether it is kept for the backward pass once the forward pass has computed it.
using Kept = std::vector<char>;

// A node, in the order of the step.
struct StepNode {
  std::vector<int> reads, makes;  // values
  int over = -1;                  // the value whose memory its first result reuses if nothing reads it later
  size_t scratch = 0;             // bytes in use while it runs and at no other time
  double seconds = 0;             // roughly how long it takes
  bool forward = false;           // part of the forward pass
};

struct StepCost {
  size_t peak = 0;     // bytes in use at once
  double excess = 0;   // bytes above the target, summed over the nodes
  double seconds = 0;  // of what is computed again
};

class StepEstimate {
 public:
  // `bytes` of the values; `wanted` are in memory until the step ends.
  StepEstimate(const std::vector<StepNode>& nodes, const std::vector<size_t>& bytes,
               const std::vector<int>& wanted);

  StepCost operator()(const Kept& kept, size_t target);

  // Nodes visited by all calls so far: what they cost, the same in each run of a program.
  long visited() const { return visited_; }

 private:
  // A node's parts of reads_ and makes_.
  struct Node {
    int reads, reads_end, makes, makes_end, over;
    size_t scratch;
    double seconds;
    bool forward;
  };
  // A node in the order of a step, for the first time or again.
  struct Run {
    int node;
    bool again;
  };

  double order_runs(const Kept& kept);
  void make_again(const Kept& kept, int value, double& seconds);
  void find_last_uses();
  // What a run reads for value v: a value that is computed again has number v + the number of values.
  int read_by(const Run& run, int v) const {
    return nodes_[static_cast<size_t>(run.node)].forward && !run.again ? v : again_[static_cast<size_t>(v)];
  }
  int made_by(const Run& run, int v) const { return run.again ? v + count_ : v; }

  int count_;
  std::vector<Node> nodes_;
  std::vector<int> reads_, makes_, producers_, wanted_;
  std::vector<size_t> bytes_;  // of values, then of the same values computed again
  long visited_ = 0;
  // Working memory of a call.
  std::vector<Run> order_;
  std::vector<int> again_, last_, made_in_;
  std::vector<char> taken_;
  int call_ = 0;
};

}  // namespace ortrain
