#include "program/step_estimate.h"

#include <algorithm>

namespace ortrain {

StepEstimate::StepEstimate(const std::vector<StepNode>& nodes, const std::vector<size_t>& bytes,
                           const std::vector<int>& wanted)
    : count_(static_cast<int>(bytes.size())), producers_(bytes.size(), -1), wanted_(wanted), bytes_(bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const StepNode& node = nodes[i];
    const auto reads = static_cast<int>(reads_.size()), makes = static_cast<int>(makes_.size());
    reads_.insert(reads_.end(), node.reads.begin(), node.reads.end());
    makes_.insert(makes_.end(), node.makes.begin(), node.makes.end());
    for (const int v : node.makes) producers_[static_cast<size_t>(v)] = static_cast<int>(i);
    nodes_.push_back({reads, static_cast<int>(reads_.size()), makes, static_cast<int>(makes_.size()),
                      node.over, node.scratch, node.seconds, node.forward});
  }
  again_.resize(bytes.size());
  made_in_.assign(bytes.size(), 0);
  last_.assign(bytes_.size(), -1);
  taken_.assign(bytes_.size(), false);
}

// Adds the nodes that compute a dropped value again to the order, after the nodes that compute their inputs.
void StepEstimate::make_again(const Kept& kept, int value, double& seconds) {
  const auto v = static_cast<size_t>(value);
  if (kept[v] || made_in_[v] == call_) return;
  const Node& node = nodes_[static_cast<size_t>(producers_[v])];
  for (int k = node.makes; k < node.makes_end; ++k)
    made_in_[static_cast<size_t>(makes_[static_cast<size_t>(k)])] = call_;
  for (int k = node.reads; k < node.reads_end; ++k) make_again(kept, reads_[static_cast<size_t>(k)], seconds);
  order_.push_back({producers_[v], true});
  seconds += node.seconds;
}

// The order of the nodes in the step; returns the time of the nodes that run again.
double StepEstimate::order_runs(const Kept& kept) {
  ++call_;
  order_.clear();
  double seconds = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    for (int k = node.reads; !node.forward && k < node.reads_end; ++k)
      make_again(kept, reads_[static_cast<size_t>(k)], seconds);
    order_.push_back({static_cast<int>(i), false});
  }
  return seconds;
}

void StepEstimate::find_last_uses() {
  for (size_t t = 0; t < order_.size(); ++t) {
    const Run& run = order_[t];
    const Node& node = nodes_[static_cast<size_t>(run.node)];
    for (int k = node.reads; k < node.reads_end; ++k)
      last_[static_cast<size_t>(read_by(run, reads_[static_cast<size_t>(k)]))] = static_cast<int>(t);
    for (int k = node.makes; k < node.makes_end; ++k)
      last_[static_cast<size_t>(made_by(run, makes_[static_cast<size_t>(k)]))] = static_cast<int>(t);
  }
  for (const int v : wanted_) last_[static_cast<size_t>(v)] = static_cast<int>(order_.size());
}

StepCost StepEstimate::operator()(const Kept& kept, size_t target) {
  for (int v = 0; v < count_; ++v)
    again_[static_cast<size_t>(v)] = kept[static_cast<size_t>(v)] ? v : v + count_;
  StepCost cost;
  cost.seconds = order_runs(kept);
  visited_ += static_cast<long>(order_.size());
  find_last_uses();

  std::fill(taken_.begin(), taken_.end(), false);
  size_t live = 0;
  const auto release = [&](int v, size_t t) {
    const auto at = static_cast<size_t>(v);
    if (!taken_[at] || last_[at] != static_cast<int>(t)) return;
    taken_[at] = false;
    live -= bytes_[at];
  };
  for (size_t t = 0; t < order_.size(); ++t) {
    const Run& run = order_[t];
    const Node& node = nodes_[static_cast<size_t>(run.node)];
    for (int k = node.makes; k < node.makes_end; ++k) {
      const int v = made_by(run, makes_[static_cast<size_t>(k)]);
      if (k == node.makes && node.over >= 0)
        if (const int below = read_by(run, node.over);
            bytes_[static_cast<size_t>(below)] == bytes_[static_cast<size_t>(v)])
          release(below, t);
      taken_[static_cast<size_t>(v)] = true;
      live += bytes_[static_cast<size_t>(v)];
    }
    const size_t now = live + node.scratch;
    cost.peak = std::max(cost.peak, now);
    if (now > target) cost.excess += static_cast<double>(now - target);
    for (int k = node.reads; k < node.reads_end; ++k)
      release(read_by(run, reads_[static_cast<size_t>(k)]), t);
    for (int k = node.makes; k < node.makes_end; ++k)
      release(made_by(run, makes_[static_cast<size_t>(k)]), t);
  }
  return cost;
}

}  // namespace ortrain
