#include "program/recompute.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_set>
#include <utility>

#include "op/operator.h"

namespace ortrain {

namespace {

constexpr size_t kSmall = 4096;    // bytes of a value that is not worth dropping
constexpr long kWork = 8'000'000;  // nodes visited in one search: seconds, 7 on a busy machine

enum class Again { kNever, kSame, kOtherwise };

bool has_subgraph(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
  });
}

// How output 0 of a node, or any output if this is kSame, can be recomputed. `read` are the values that some
// node reads, `updated` those that some node overwrites.
Again how_again(const Node& node, const std::unordered_set<std::string>& read,
                const std::unordered_set<std::string>& updated) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (!op || has_subgraph(node)) return Again::kNever;
  if (op->traits.repeat) {
    const bool can = op->traits.repeat(node, [](size_t) { return std::string("output"); }).has_value();
    return can ? Again::kOtherwise : Again::kNever;
  }
  // A kernel may depend on which of its outputs are read, as MaxPool's does.
  for (size_t o = 1; o < node.outputs.size() && !op->traits.independent_outputs; ++o)
    if (read.contains(node.outputs[o])) return Again::kNever;
  const bool reads_state = std::any_of(node.inputs.begin(), node.inputs.end(),
                                       [&](const std::string& name) { return updated.contains(name); });
  return op->traits.impure || op->traits.updates != 0 || reads_state ? Again::kNever : Again::kSame;
}

// State that some node of the graph updates.
std::unordered_set<std::string> updated_state(const std::vector<Node>& nodes) {
  std::unordered_set<std::string> updated;
  for (const Node& node : nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    for (size_t i = 0; op && i < node.inputs.size(); ++i)
      if (op->traits.updates >> i & 1) updated.insert(node.inputs[i]);
  }
  return updated;
}

}  // namespace

Recomputation::Recomputation(const std::vector<Node>& nodes, const std::vector<std::string>& outputs,
                             const Footprint& footprint)
    : nodes_(nodes) {
  const auto value = [&](const std::string& name) {
    if (name.empty()) return -1;
    const auto [at, fresh] = index_.try_emplace(name, static_cast<int>(values_.size()));
    if (fresh) {
      const auto bytes = footprint.bytes.find(name);
      values_.push_back({bytes == footprint.bytes.end() ? 0 : bytes->second, -1, -1});
    }
    return at->second;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    Item item;
    item.cost = footprint.nodes[i];
    if (!item.cost.folded) {
      for (const std::string& name : nodes[i].inputs) item.inputs.push_back(value(name));
      if (has_subgraph(nodes[i]))
        for (const std::string& name : values_read(nodes[i])) item.inputs.push_back(value(name));
    }
    for (const std::string& name : nodes[i].outputs) {
      item.outputs.push_back(value(name));
      if (item.outputs.back() >= 0)
        values_[static_cast<size_t>(item.outputs.back())].producer = static_cast<int>(i);
    }
    items_.push_back(std::move(item));
  }
  for (const std::string& name : outputs) wanted_.push_back(value(name));
  mark_forward();
  group_values();
  mark_reads();

  Kept all(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) all[g] = must_keep_[g] || read_backward_[g];
  if (const size_t peak = estimate(all, 0).peak; peak > 0)
    scale_ = static_cast<double>(footprint.live) / static_cast<double>(peak);
}

// The forward pass consists of the nodes that the requested outputs need.
void Recomputation::mark_forward() {
  std::vector<int> open = wanted_;
  while (!open.empty()) {
    const int producer = values_[static_cast<size_t>(open.back())].producer;
    open.pop_back();
    if (producer < 0 || items_[static_cast<size_t>(producer)].forward) continue;
    items_[static_cast<size_t>(producer)].forward = true;
    for (const int input : items_[static_cast<size_t>(producer)].inputs)
      if (input >= 0) open.push_back(input);
  }
}

// Groups of forward values that share memory.
void Recomputation::group_values() {
  const auto updated = updated_state(nodes_);
  std::unordered_set<std::string> read;
  for (const Node& node : nodes_)
    for (const std::string& name : values_read(node)) read.insert(name);
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    if (!item.forward) continue;
    const Again again = how_again(nodes_[i], read, updated);
    for (size_t o = 0; o < item.outputs.size(); ++o) {
      if (item.outputs[o] < 0) continue;
      Value& v = values_[static_cast<size_t>(item.outputs[o])];
      if (v.bytes == 0) continue;
      const int source = item.cost.alias && !item.inputs.empty() ? item.inputs[0] : -1;
      if (source >= 0 && values_[static_cast<size_t>(source)].group >= 0) {
        v.group = values_[static_cast<size_t>(source)].group;
      } else {
        v.group = static_cast<int>(groups_.size());
        groups_.emplace_back();
        group_bytes_.push_back(v.bytes);
        must_keep_.push_back(false);
        read_backward_.push_back(false);
        last_forward_read_.push_back(static_cast<int>(i));
      }
      const auto group = static_cast<size_t>(v.group);
      groups_[group].push_back(item.outputs[o]);
      if (v.bytes < kSmall || again == Again::kNever || (again != Again::kSame && o > 0))
        must_keep_[group] = true;
    }
  }
}

// When each group is read, and by which pass.
void Recomputation::mark_reads() {
  for (size_t i = 0; i < items_.size(); ++i)
    for (const int input : items_[i].inputs) {
      const int group = input < 0 ? -1 : values_[static_cast<size_t>(input)].group;
      if (group < 0) continue;
      if (items_[i].forward)
        last_forward_read_[static_cast<size_t>(group)] = static_cast<int>(i);
      else
        read_backward_[static_cast<size_t>(group)] = true;
    }
  for (const int v : wanted_)
    if (const int group = values_[static_cast<size_t>(v)].group; group >= 0)
      must_keep_[static_cast<size_t>(group)] = true;
}

bool Recomputation::is_dropped(const Kept& kept, int v) const {
  const int group = values_[static_cast<size_t>(v)].group;
  return group >= 0 && !kept[static_cast<size_t>(group)];
}

// A recomputed value v has number v + the number of values.
int Recomputation::input_of(const Kept& kept, const Run& run, size_t k) const {
  const Item& item = items_[static_cast<size_t>(run.item)];
  const int v = item.inputs[k];
  const bool first_time = item.forward && !run.again;
  return !first_time && v >= 0 && is_dropped(kept, v) ? v + static_cast<int>(values_.size()) : v;
}

int Recomputation::output_of(const Run& run, size_t o) const {
  const int v = items_[static_cast<size_t>(run.item)].outputs[o];
  return run.again && v >= 0 ? v + static_cast<int>(values_.size()) : v;
}

// The order that rewrite() would give the nodes; returns the time that recomputing takes.
double Recomputation::order_runs(const Kept& kept) {
  double seconds = 0;
  order_.clear();
  made_.assign(values_.size(), false);
  const auto make = [&](int v, const auto& self) -> void {
    if (v < 0 || !is_dropped(kept, v) || made_[static_cast<size_t>(v)]) return;
    const int producer = values_[static_cast<size_t>(v)].producer;
    const Item& item = items_[static_cast<size_t>(producer)];
    for (const int output : item.outputs)
      if (output >= 0) made_[static_cast<size_t>(output)] = true;
    for (const int input : item.inputs) self(input, self);
    order_.push_back({producer, true});
    seconds += item.cost.seconds;
  };
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].forward)
      for (const int input : items_[i].inputs) make(input, make);
    order_.push_back({static_cast<int>(i), false});
  }
  return seconds;
}

// Which memory each value is in (its root), and when that is used last.
void Recomputation::find_last_uses(const Kept& kept) {
  const auto count = static_cast<int>(values_.size());
  root_.resize(static_cast<size_t>(2 * count));
  last_.assign(static_cast<size_t>(2 * count), -1);
  for (int v = 0; v < 2 * count; ++v) root_[static_cast<size_t>(v)] = v;
  for (size_t t = 0; t < order_.size(); ++t) {
    const Run& run = order_[t];
    const Item& item = items_[static_cast<size_t>(run.item)];
    for (size_t k = 0; k < item.inputs.size(); ++k)
      if (const int v = input_of(kept, run, k); v >= 0)
        last_[static_cast<size_t>(root_[static_cast<size_t>(v)])] = static_cast<int>(t);
    for (size_t o = 0; o < item.outputs.size(); ++o) {
      const int v = output_of(run, o);
      if (v < 0) continue;
      if (item.cost.alias && !item.inputs.empty() && input_of(kept, run, 0) >= 0)
        root_[static_cast<size_t>(v)] = root_[static_cast<size_t>(input_of(kept, run, 0))];
      last_[static_cast<size_t>(root_[static_cast<size_t>(v)])] = static_cast<int>(t);
    }
  }
  for (const int v : wanted_)
    last_[static_cast<size_t>(root_[static_cast<size_t>(v)])] = static_cast<int>(order_.size());
}

// Visits the nodes in that order.
Recomputation::Estimate Recomputation::estimate(const Kept& kept, size_t target) {
  const auto count = static_cast<int>(values_.size());
  work_left_ -= static_cast<long>(items_.size());
  Estimate result;
  result.seconds = order_runs(kept);
  find_last_uses(kept);

  taken_.assign(static_cast<size_t>(2 * count), false);
  size_t live = 0;
  const auto bytes_of = [&](int v) { return values_[static_cast<size_t>(v % count)].bytes; };
  const auto release = [&](int root) {
    if (!taken_[static_cast<size_t>(root)]) return;
    taken_[static_cast<size_t>(root)] = false;
    live -= bytes_of(root);
  };
  for (size_t t = 0; t < order_.size(); ++t) {
    const Run& run = order_[t];
    const Item& item = items_[static_cast<size_t>(run.item)];
    for (size_t o = 0; o < item.outputs.size(); ++o) {
      const int v = output_of(run, o);
      if (v < 0 || root_[static_cast<size_t>(v)] != v || bytes_of(v) == 0) continue;
      if (o == 0 && item.cost.over >= 0) {
        const int below = input_of(kept, run, static_cast<size_t>(item.cost.over));
        const int root = below < 0 ? -1 : root_[static_cast<size_t>(below)];
        if (root >= 0 && last_[static_cast<size_t>(root)] == static_cast<int>(t) &&
            bytes_of(root) == bytes_of(v))
          release(root);
      }
      taken_[static_cast<size_t>(v)] = true;
      live += bytes_of(v);
    }
    const size_t now = live + item.cost.scratch;
    result.peak = std::max(result.peak, now);
    if (now > target) result.excess += static_cast<double>(now - target);
    for (size_t k = 0; k < item.inputs.size(); ++k)
      if (const int v = input_of(kept, run, k); v >= 0)
        if (const int root = root_[static_cast<size_t>(v)];
            last_[static_cast<size_t>(root)] == static_cast<int>(t))
          release(root);
    for (size_t o = 0; o < item.outputs.size(); ++o)
      if (const int v = output_of(run, o); v >= 0)
        if (const int root = root_[static_cast<size_t>(v)];
            last_[static_cast<size_t>(root)] == static_cast<int>(t))
          release(root);
  }
  return result;
}

// Keeps what crosses the boundaries of segments of the forward pass, each of which produces about `bytes`
// that the backward pass reads (Chen et al., algorithm 3).
Recomputation::Kept Recomputation::segments(double bytes) const {
  Kept kept(must_keep_.begin(), must_keep_.end());
  double sum = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].forward) continue;
    for (const int v : items_[i].outputs) {
      const int group = v < 0 ? -1 : values_[static_cast<size_t>(v)].group;
      if (group >= 0 && groups_[static_cast<size_t>(group)][0] == v &&
          read_backward_[static_cast<size_t>(group)])
        sum += static_cast<double>(group_bytes_[static_cast<size_t>(group)]);
    }
    if (sum < bytes) continue;
    sum = 0;
    for (size_t g = 0; g < groups_.size(); ++g)
      if (values_[static_cast<size_t>(groups_[g][0])].producer <= static_cast<int>(i) &&
          last_forward_read_[g] > static_cast<int>(i))
        kept[g] = true;
  }
  return kept;
}

// The moves that drop most: as many as can be tried in an eighth of the work, none of results that are as
// good as free.
std::vector<Recomputation::Move> Recomputation::moves(const Kept& kept, size_t peak) const {
  constexpr size_t kShare = 4096;
  constexpr long kTries = 2, kOfWork = 8;
  std::vector<std::pair<size_t, size_t>> sizes;  // bytes, item
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!items_[i].forward) continue;
    size_t bytes = 0;
    for (const size_t g : results_of(i))
      if (kept[g] && !must_keep_[g]) bytes += group_bytes_[g];
    if (bytes > peak / kShare) sizes.emplace_back(bytes, i);
  }
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const long most = work_left_ / (kTries * kOfWork * static_cast<long>(items_.size()));
  if (std::cmp_greater(sizes.size(), most)) sizes.resize(static_cast<size_t>(std::max(most, 1L)));
  std::vector<Move> found;
  for (const auto& [bytes, item] : sizes) {
    found.push_back({item, false});
    found.push_back({item, true});
  }
  return found;
}

// The groups that an item makes.
std::vector<size_t> Recomputation::results_of(size_t item) const {
  std::vector<size_t> found;
  for (const int v : items_[item].outputs)
    if (const int group = v < 0 ? -1 : values_[static_cast<size_t>(v)].group;
        group >= 0 && groups_[static_cast<size_t>(group)][0] == v)
      found.push_back(static_cast<size_t>(group));
  return found;
}

// Changes what is kept, and returns the groups that changed: nothing if the move does not apply.
std::vector<size_t> Recomputation::make_move(const Move& move, Kept& kept) const {
  std::vector<size_t> changed;
  const auto set = [&](size_t g, bool keep) {
    if (static_cast<bool>(kept[g]) == keep) return;
    kept[g] = keep;
    changed.push_back(g);
  };
  for (const size_t g : results_of(move.item))
    if (!must_keep_[g]) set(g, false);
  if (changed.empty() || !move.keeps_inputs) return changed;
  const size_t dropped = changed.size();
  for (const int v : items_[move.item].inputs)
    if (const int group = v < 0 ? -1 : values_[static_cast<size_t>(v)].group; group >= 0)
      set(static_cast<size_t>(group), true);
  if (changed.size() > dropped) return changed;
  undo(changed, kept);  // it is the move without inputs
  return {};
}

void Recomputation::undo(const std::vector<size_t>& changed, Kept& kept) {
  for (const size_t g : changed) kept[g] = !kept[g];
}

// Makes one move after another, each time the one that saves most relative to its cost in time. Only bytes
// above `goal` count as saved; it is lower than the target if moves are to prepare for others. What a move is
// worth changes little from one to the next, so only that of the best ones is found again each time, and of
// those that are worth about as much, as in equal layers, the first is made.
bool Recomputation::drop_until_it_fits(Kept& kept, Estimate& now, size_t target, size_t goal) {
  now = estimate(kept, goal);
  const auto worth = [&](const Move& move) {
    const std::vector<size_t> changed = make_move(move, kept);
    if (changed.empty()) return 0.0;
    const Estimate tried = estimate(kept, goal);
    undo(changed, kept);
    // The extra time counts as at least that of one call.
    return (now.excess - tried.excess) / std::max(1e-6, tried.seconds - now.seconds);
  };
  constexpr double kAlike = 0.8;
  const auto less = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::vector<std::pair<double, Move>> heap, worthless;
  const auto add = [&](double value, const Move& move) {
    if (value <= 0) return worthless.emplace_back(value, move), void();
    heap.emplace_back(value, move);
    std::push_heap(heap.begin(), heap.end(), less);
  };
  for (const Move& move : moves(kept, now.peak)) {
    if (work_left_ <= 0) return false;
    add(worth(move), move);
  }
  bool moved = false;  // since `worthless` was emptied
  while (now.peak > target) {
    if (heap.empty()) {
      if (!moved) return false;
      moved = false;
      for (const auto& [before, move] : std::exchange(worthless, {})) add(worth(move), move);
      continue;
    }
    if (work_left_ <= 0) return false;
    std::pop_heap(heap.begin(), heap.end(), less);
    const Move move = heap.back().second;
    heap.pop_back();
    const double value = worth(move);
    if (value <= 0 || (!heap.empty() && value < kAlike * heap.front().first)) {
      add(value, move);
      continue;
    }
    make_move(move, kept);
    now = estimate(kept, goal);
    moved = true;
  }
  return true;
}

// Keeps what turns out to fit after all, the most expensive for its size first.
void Recomputation::keep_what_fits(Kept& kept, Estimate& now, size_t target) {
  std::vector<size_t> order;
  for (size_t g = 0; g < groups_.size(); ++g)
    if (!kept[g]) order.push_back(g);
  const auto worth = [&](size_t g) {
    const int producer = values_[static_cast<size_t>(groups_[g][0])].producer;
    return items_[static_cast<size_t>(producer)].cost.seconds / static_cast<double>(group_bytes_[g]);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return worth(a) > worth(b); });
  for (const size_t g : order) {
    if (work_left_ <= 0) return;
    kept[g] = true;
    const Estimate tried = estimate(kept, target);
    if (tried.peak <= target && tried.seconds < now.seconds)
      now = tried;
    else
      kept[g] = false;
  }
}

std::optional<std::pair<Recomputation::Kept, Recomputation::Estimate>> Recomputation::search(size_t target) {
  work_left_ = kWork;
  std::vector<std::pair<Kept, Estimate>> found;
  Kept all(groups_.size());
  double total = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    all[g] = must_keep_[g] || read_backward_[g];
    if (read_backward_[g]) total += static_cast<double>(group_bytes_[g]);
  }
  std::pair<Kept, Estimate> frugal{all, estimate(all, target)};
  for (double bytes = total; bytes > total / 100; bytes *= 0.8) {
    Kept kept = segments(bytes);
    const Estimate e = estimate(kept, target);
    if (e.peak < frugal.second.peak) frugal = {kept, e};
    if (e.peak <= target) found.emplace_back(std::move(kept), e);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.second.seconds < b.second.seconds; });
  if (found.size() > 3) found.resize(3);
  for (const double share : {1.0, 0.9, 0.8, 0.6}) {
    std::pair<Kept, Estimate> dropped{all, {}};
    const auto goal = static_cast<size_t>(share * static_cast<double>(target));
    if (!drop_until_it_fits(dropped.first, dropped.second, target, goal)) continue;
    found.push_back(std::move(dropped));
    break;
  }
  if (found.empty() && drop_until_it_fits(frugal.first, frugal.second, target, target))
    found.push_back(frugal);
  if (found.empty()) return std::nullopt;
  for (auto& [kept, e] : found) keep_what_fits(kept, e, target);
  return *std::min_element(found.begin(), found.end(),
                           [](const auto& a, const auto& b) { return a.second.seconds < b.second.seconds; });
}

std::optional<std::vector<Node>> Recomputation::fit(size_t bytes) {
  const auto found = search(static_cast<size_t>(static_cast<double>(bytes) / scale_));
  if (!found) return std::nullopt;
  return rewrite(found->first);
}

std::vector<Node> Recomputation::rewrite(const Kept& kept) const {
  std::vector<Node> out;
  std::unordered_map<std::string, std::string> again;  // names of recomputed values
  std::unordered_map<std::string, size_t> made_at;     // nodes of `out` by their first output
  const auto fresh_name = [&](const std::string& base) {
    std::string name = base + "_recomputed";
    while (index_.contains(name)) name += "_";
    return name;
  };
  const auto dropped = [&](const std::string& name) {
    const auto at = index_.find(name);
    if (at == index_.end()) return false;
    const int group = values_[static_cast<size_t>(at->second)].group;
    return group >= 0 && !kept[static_cast<size_t>(group)];
  };
  const auto resolve = [&](const std::string& name) {
    const auto at = again.find(name);
    return at == again.end() ? name : at->second;
  };
  const auto make = [&](const std::string& name, const auto& self) -> void {
    if (name.empty() || again.contains(name) || !dropped(name)) return;
    const auto producer = static_cast<size_t>(values_[static_cast<size_t>(index_.at(name))].producer);
    Node node = nodes_[producer];
    const std::vector<std::string> originals = node.outputs;
    node.name = fresh_name(node.name.empty() ? node.outputs[0] : node.name);
    for (const std::string& input : node.inputs) self(input, self);
    if (const Operator* op = find_operator(node.domain, node.op_type); op->traits.repeat) {
      const std::string name = node.name;
      // The other outputs of the first run are small and are kept.
      node = *op->traits.repeat(node, [&](size_t o) {
        Node& first = out[made_at.at(originals[0])];
        if (first.outputs.size() <= o) first.outputs.resize(o + 1);
        if (first.outputs[o].empty()) first.outputs[o] = fresh_name(concat(originals[0], "_output_", o));
        return first.outputs[o];
      });
      node.name = name;
    }
    for (std::string& input : node.inputs) input = resolve(input);
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (node.outputs[o].empty()) continue;
      node.outputs[o] = fresh_name(originals[o]);
      if (dropped(originals[o])) again.emplace(originals[o], node.outputs[o]);
    }
    out.push_back(std::move(node));
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node node = nodes_[i];
    if (!items_[i].forward && !items_[i].cost.folded) {
      for (const std::string& input : values_read(node)) make(input, make);
      for (std::string& input : node.inputs) input = resolve(input);
    }
    if (node.has_output(0)) made_at[node.outputs[0]] = out.size();
    out.push_back(std::move(node));
  }
  return out;
}

}  // namespace ortrain
