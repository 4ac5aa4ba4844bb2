#include "program/recompute_search.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/stable_sort.h"

namespace ortrain {

namespace {

constexpr double kStage = 0.8;                         // of the memory in use: the next target of the descent
constexpr double kTenth = 0.9;                         // of the memory in use: a tenth less
constexpr std::array kShares = {0.8, 0.9, 0.95, 1.0};  // of a target: for each, the descent gives a choice
// A choice of segments is tried only if it takes less time than the best choice of the descent times this
// factor.
constexpr double kPromising = 2;
// The most nodes that the estimates of a descent may visit, which takes seconds.
constexpr long kWork = 200'000'000;

void undo(const std::vector<int>& changed, Kept& kept) {
  for (const int v : changed) kept[static_cast<size_t>(v)] = !kept[static_cast<size_t>(v)];
}

}  // namespace

RecomputationSearch::RecomputationSearch(std::vector<StepNode> nodes, Values values)
    : nodes_(std::move(nodes)),
      values_(std::move(values)),
      estimate_(nodes_, values_.bytes, values_.wanted),
      last_forward_read_(values_.bytes.size(), -1),
      all_(values_.bytes.size()) {
  for (size_t i = 0; i < nodes_.size(); ++i)
    for (const std::vector<int>* used : {&nodes_[i].makes, &nodes_[i].reads})
      for (const int v : *used)
        if (nodes_[i].forward) last_forward_read_[static_cast<size_t>(v)] = static_cast<int>(i);
  for (size_t v = 0; v < all_.size(); ++v) all_[v] = values_.must_keep[v] || values_.read_backward[v];
  now_ = all_;
  cost_ = estimate_(now_, 0);
  whole_ = cost_.peak;
  states_.push_back({{}, whole_, cost_.seconds});
}

// The moves that drop enough bytes to be worth a try.
std::vector<RecomputationSearch::Move> RecomputationSearch::moves() const {
  constexpr size_t kShare = 16384;
  constexpr long kTries = 2, kOfWork = 16;
  std::vector<std::pair<size_t, size_t>> sizes;  // bytes, node
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].forward) continue;
    size_t bytes = 0;
    for (const int v : nodes_[i].makes)
      if (const auto at = static_cast<size_t>(v); now_[at] && !values_.must_keep[at])
        bytes += values_.bytes[at];
    if (bytes > cost_.peak / kShare) sizes.emplace_back(bytes, i);
  }
  stable_sort(sizes, [](const auto& a, const auto& b) { return a.first > b.first; });
  // Only the largest, if trying all of them would take too long.
  const long most = kWork / (kTries * kOfWork * static_cast<long>(nodes_.size()));
  if (std::cmp_greater(sizes.size(), most)) sizes.resize(static_cast<size_t>(std::max(most, 1L)));
  std::vector<Move> found;
  for (const auto& [bytes, node] : sizes) {
    found.push_back({node, false});
    found.push_back({node, true});
  }
  return found;
}

// Changes which values are kept, and returns the values that changed: nothing if the move does not apply.
std::vector<int> RecomputationSearch::make_move(const Move& move, Kept& kept) const {
  std::vector<int> changed;
  const auto set = [&](int v, bool keep) {
    if (static_cast<bool>(kept[static_cast<size_t>(v)]) == keep) return;
    kept[static_cast<size_t>(v)] = keep;
    changed.push_back(v);
  };
  for (const int v : nodes_[move.node].makes)
    if (!values_.must_keep[static_cast<size_t>(v)]) set(v, false);
  if (changed.empty() || !move.keeps_inputs) return changed;
  const size_t dropped = changed.size();
  for (const int v : nodes_[move.node].reads) set(v, true);
  if (changed.size() > dropped) return changed;
  undo(changed, kept);  // the same as the move that does not keep inputs
  return {};
}

// Makes moves until the target is met, each time the move that saves most relative to its cost in time. Only
// bytes above `goal` count as saved; `goal` is lower than the target if moves shall prepare for later moves.
// The worth of a move changes little from one move to the next, so only the worth of the best moves is found
// again each time. Among moves of about equal worth, as in equal layers, the first is made.
bool RecomputationSearch::descend_once(size_t target, size_t goal) {
  cost_ = estimate_(now_, goal);
  const auto worth = [&](const Move& move) {
    const std::vector<int> changed = make_move(move, now_);
    if (changed.empty()) return 0.0;
    const StepCost tried = estimate_(now_, goal);
    undo(changed, now_);
    // The extra time counts as at least the time of one call.
    return (cost_.excess - tried.excess) / std::max(1e-6, tried.seconds - cost_.seconds);
  };
  constexpr double kAlike = 0.8;
  const auto less = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::vector<std::pair<double, Move>> heap, worthless;
  const auto add = [&](double value, const Move& move) {
    if (value <= 0) return worthless.emplace_back(value, move), void();
    heap.emplace_back(value, move);
    std::push_heap(heap.begin(), heap.end(), less);
  };
  for (const Move& move : moves()) add(worth(move), move);
  bool moved = false;  // since `worthless` was emptied
  while (cost_.peak > target) {
    if (estimate_.visited() > kWork) return false;
    if (heap.empty()) {
      if (!moved) return false;
      moved = false;
      for (const auto& [before, move] : std::exchange(worthless, {})) add(worth(move), move);
      continue;
    }
    std::pop_heap(heap.begin(), heap.end(), less);
    const Move move = heap.back().second;
    heap.pop_back();
    const double value = worth(move);
    if (value <= 0 || (!heap.empty() && value < kAlike * heap.front().first)) {
      add(value, move);
      continue;
    }
    std::vector<int> changed = make_move(move, now_);
    cost_ = estimate_(now_, goal);
    states_.push_back({std::move(changed), cost_.peak, cost_.seconds});
    moved = true;
  }
  return true;
}

// Descends in stages until the target is met or no move saves memory.
void RecomputationSearch::descend(size_t target) {
  while (!exhausted_ && cost_.peak > target) {
    const auto next = std::max(target, static_cast<size_t>(kStage * static_cast<double>(cost_.peak)));
    bool met = false;
    for (const double share : {0.8, 1.0, 0.9, 0.6})
      if (!met) met = descend_once(next, static_cast<size_t>(share * static_cast<double>(next)));
    exhausted_ = !met;
  }
}

// The first state of the descent that meets the target, and the first ones that meet somewhat lower targets.
std::vector<RecomputationSearch::Choice> RecomputationSearch::on_descent(size_t target) const {
  std::vector<Choice> found;
  auto share = kShares.rbegin();
  Kept kept = all_;
  for (const State& state : states_) {
    undo(state.changed, kept);
    bool meets = false;
    for (; share != kShares.rend() && static_cast<double>(state.peak) <= *share * static_cast<double>(target);
         ++share)
      meets = true;
    if (meets) found.push_back({kept, {}});
  }
  return found;
}

// Keeps the values that cross the boundaries of segments of the forward pass, each of which produces about
// `bytes` that the backward pass reads (Chen et al., algorithm 3).
Kept RecomputationSearch::segments(double bytes) const {
  Kept kept(values_.must_keep.begin(), values_.must_keep.end());
  double sum = 0;
  std::vector<int> made;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].forward) continue;
    for (const int v : nodes_[i].makes) {
      made.push_back(v);
      if (values_.read_backward[static_cast<size_t>(v)])
        sum += static_cast<double>(values_.bytes[static_cast<size_t>(v)]);
    }
    if (sum < bytes) continue;
    sum = 0;
    for (const int v : made)
      if (last_forward_read_[static_cast<size_t>(v)] > static_cast<int>(i))
        kept[static_cast<size_t>(v)] = true;
  }
  return kept;
}

// Choices of segments, of all lengths, the fastest first.
std::vector<RecomputationSearch::Choice> RecomputationSearch::of_segments(size_t target) {
  double total = 0;
  for (size_t v = 0; v < all_.size(); ++v)
    if (values_.read_backward[v]) total += static_cast<double>(values_.bytes[v]);
  std::vector<Choice> found;
  for (double bytes = total; bytes > total / 100; bytes *= 0.8) {
    Choice choice{segments(bytes), {}};
    choice.cost = estimate_(choice.kept, target);
    found.push_back(std::move(choice));
  }
  stable_sort(found, [](const Choice& a, const Choice& b) { return a.cost.seconds < b.cost.seconds; });
  return found;
}

// Drops more values of a choice until it meets the target, without a change of the descent; `goal` as in
// descend_once.
bool RecomputationSearch::drop_more(Choice& choice, size_t target, size_t goal) {
  const size_t known = states_.size();
  const StepCost before = cost_;
  std::swap(choice.kept, now_);
  const bool met = descend_once(target, goal);
  std::swap(choice.kept, now_);
  choice.cost = std::exchange(cost_, before);
  states_.resize(known);
  return met;
}

// Tries new descents to a target that the common descent did not reach, each with another goal, and returns
// the first that reaches it.
std::optional<RecomputationSearch::Choice> RecomputationSearch::start_anew(size_t target) {
  for (const double share : {1.0, 0.9, 0.8, 0.6}) {
    Choice choice{all_, {}};
    if (drop_more(choice, target, static_cast<size_t>(share * static_cast<double>(target)))) return choice;
  }
  return std::nullopt;
}

// Drops values that take much less time for their size than the values that the choice has dropped so far, if
// the peak does not rise. Expensive values then fit instead. The descent did not drop these cheap values
// because, of moves that save equally at the peak, it prefers those of values that live longer.
void RecomputationSearch::drop_what_is_cheap(Choice& choice) {
  constexpr double kMuchLess = 0.5;
  const double usual = choice.cost.seconds / static_cast<double>(whole_ - choice.cost.peak + 1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    size_t bytes = 0;
    for (const int v : nodes_[i].makes)
      if (const auto at = static_cast<size_t>(v); choice.kept[at] && !values_.must_keep[at])
        bytes += values_.bytes[at];
    if (bytes == 0 || nodes_[i].seconds > kMuchLess * usual * static_cast<double>(bytes)) continue;
    const std::vector<int> changed = make_move({i, false}, choice.kept);
    const StepCost tried = estimate_(choice.kept, 0);
    if (tried.peak <= choice.cost.peak &&
        tried.seconds - choice.cost.seconds <= kMuchLess * usual * static_cast<double>(bytes))
      choice.cost = tried;
    else
      undo(changed, choice.kept);
  }
}

// Keeps dropped values that fit after all, the most expensive for their size first.
void RecomputationSearch::keep_what_fits(Choice& choice, size_t target) {
  std::vector<std::pair<double, size_t>> order;
  for (const StepNode& node : nodes_)
    for (const int v : node.makes)
      if (const auto at = static_cast<size_t>(v); !choice.kept[at])
        order.emplace_back(node.seconds / static_cast<double>(values_.bytes[at]), at);
  stable_sort(order, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [worth, v] : order) {
    choice.kept[v] = true;
    const StepCost tried = estimate_(choice.kept, target);
    if (tried.peak <= target && tried.seconds < choice.cost.seconds)
      choice.cost = tried;
    else
      choice.kept[v] = false;
  }
}

std::optional<RecomputationSearch::Choice> RecomputationSearch::within(size_t target) {
  // Descends below the target, for choices that then keep expensive values.
  descend(static_cast<size_t>(kShares.front() * static_cast<double>(target)));
  std::vector<Choice> found = on_descent(target);
  if (found.empty())
    if (auto choice = start_anew(target)) found.push_back(*std::move(choice));
  for (Choice& choice : found) {
    choice.cost = estimate_(choice.kept, target);
    drop_what_is_cheap(choice);
    keep_what_fits(choice, target);
  }
  const auto fastest = [](const Choice& a, const Choice& b) { return a.cost.seconds < b.cost.seconds; };
  const auto best = std::min_element(found.begin(), found.end(), fastest);
  const std::vector<Choice> segmented = of_segments(target);
  const auto promises = [&](const Choice& choice) {
    return choice.cost.peak <= target &&
           (found.empty() || choice.cost.seconds < kPromising * best->cost.seconds);
  };
  if (const auto at = std::find_if(segmented.begin(), segmented.end(), promises); at != segmented.end()) {
    Choice choice = *at;
    keep_what_fits(choice, target);
    found.push_back(std::move(choice));
  }
  if (found.empty()) {
    Choice least =
        *std::min_element(segmented.begin(), segmented.end(),
                          [](const Choice& a, const Choice& b) { return a.cost.peak < b.cost.peak; });
    if (!drop_more(least, target, target)) return std::nullopt;
    keep_what_fits(least, target);
    found.push_back(std::move(least));
  }
  return *std::min_element(found.begin(), found.end(), fastest);
}

std::optional<RecomputationSearch::Choice> RecomputationSearch::least(double seconds) {
  constexpr int kHalvings = 3;
  double fits = static_cast<double>(whole_), too_few = kTenth * fits;
  // While the descent alone is fast enough, no dropped value need be kept again.
  for (descend(static_cast<size_t>(too_few)); descent_meets(too_few, seconds);
       descend(static_cast<size_t>(too_few)))
    fits = std::exchange(too_few, kTenth * too_few);
  std::optional<Choice> best;
  const auto try_bytes = [&](double bytes) {
    std::optional<Choice> tried = within(static_cast<size_t>(bytes));
    if (!tried || tried->cost.seconds > seconds) return false;
    best = std::move(tried);
    return true;
  };
  while (try_bytes(too_few)) fits = std::exchange(too_few, kTenth * too_few);
  if (!best && (fits >= static_cast<double>(whole_) || !try_bytes(fits))) return std::nullopt;
  for (int i = 0; i < kHalvings; ++i) {
    const double bytes = (fits + too_few) / 2;
    (try_bytes(bytes) ? fits : too_few) = bytes;
  }
  return best;
}

// Whether the descent has a state with at most `bytes` in use that takes at most `seconds`.
bool RecomputationSearch::descent_meets(double bytes, double seconds) const {
  const auto first = std::find_if(states_.begin(), states_.end(), [&](const State& state) {
    return static_cast<double>(state.peak) <= bytes;
  });
  return first != states_.end() && first->seconds <= seconds;
}

}  // namespace ortrain
