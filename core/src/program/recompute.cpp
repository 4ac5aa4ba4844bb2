#include "program/recompute.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "op/operator.h"

namespace ortrain {

namespace {

constexpr size_t kSmall = 4096;  // bytes of a value that is not worth dropping

enum class Again { kNever, kSame, kOtherwise };

bool has_subgraph(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
  });
}

// How a node can be recomputed. kSame: the node itself can compute any of its outputs again; kOtherwise: a
// different node can compute output 0 again. `read` are the values that some node reads, `updated` those that
// some node overwrites.
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
  number_values(footprint);
  for (const std::string& name : outputs)
    if (const auto at = index_.find(name); at != index_.end()) wanted_.push_back(at->second);
  mark_forward();
  mark_kept();
  search_.emplace(make_search(footprint));
  if (const size_t peak = search_->whole(); peak > 0)
    scale_ = static_cast<double>(footprint.live) / static_cast<double>(peak);
}

// Numbers the values of the nodes, and finds the value in whose memory each of them is.
void Recomputation::number_values(const Footprint& footprint) {
  const auto value = [&](const std::string& name) {
    if (name.empty()) return -1;
    const auto [at, fresh] = index_.try_emplace(name, static_cast<int>(values_.size()));
    if (fresh) {
      const auto bytes = footprint.bytes.find(name);
      values_.emplace_back().bytes = bytes == footprint.bytes.end() ? 0 : bytes->second;
    }
    return at->second;
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Footprint::OfNode& cost = footprint.nodes[i];
    folded_.push_back(cost.folded);
    std::vector<int>& inputs = inputs_.emplace_back();
    if (!cost.folded) {
      for (const std::string& name : nodes_[i].inputs) inputs.push_back(value(name));
      if (has_subgraph(nodes_[i]))
        for (const std::string& name : values_read(nodes_[i])) inputs.push_back(value(name));
    }
    std::vector<int>& outputs = outputs_.emplace_back();
    for (const std::string& name : nodes_[i].outputs) {
      const int v = value(name);
      outputs.push_back(v);
      if (v < 0) continue;
      Value& made = values_[static_cast<size_t>(v)];
      made.producer = static_cast<int>(i);
      if (made.bytes == 0) continue;
      const int source = cost.alias && !inputs.empty() ? inputs[0] : -1;
      const int below = source < 0 ? -1 : values_[static_cast<size_t>(source)].memory;
      made.memory = below < 0 ? v : below;
    }
  }
}

// The forward pass consists of the nodes that the requested outputs need.
void Recomputation::mark_forward() {
  forward_.assign(nodes_.size(), false);
  std::vector<int> open = wanted_;
  while (!open.empty()) {
    const int producer = open.back() < 0 ? -1 : values_[static_cast<size_t>(open.back())].producer;
    open.pop_back();
    if (producer < 0 || forward_[static_cast<size_t>(producer)]) continue;
    forward_[static_cast<size_t>(producer)] = true;
    for (const int input : inputs_[static_cast<size_t>(producer)]) open.push_back(input);
  }
}

// Marks the values that cannot be dropped, because they cannot be computed again or are too small, and the
// values that the backward pass reads. Values of other names and shapes in the same memory share these marks.
void Recomputation::mark_kept() {
  const auto updated = updated_state(nodes_);
  std::unordered_set<std::string> read;
  for (const Node& node : nodes_)
    for (const std::string& name : values_read(node)) read.insert(name);
  const auto memory_of = [&](int v) -> Value* {
    const int memory = v < 0 ? -1 : values_[static_cast<size_t>(v)].memory;
    return memory < 0 ? nullptr : &values_[static_cast<size_t>(memory)];
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Again again = forward_[i] ? how_again(nodes_[i], read, updated) : Again::kNever;
    for (size_t o = 0; o < outputs_[i].size(); ++o) {
      const int v = outputs_[i][o];
      Value* made = memory_of(v);
      // The backward pass can give a value of the forward pass another shape again wherever that value is
      // available.
      if (!made || (!forward_[i] && values_[static_cast<size_t>(v)].memory != v)) continue;
      made->must_keep |= values_[static_cast<size_t>(v)].bytes < kSmall || again == Again::kNever ||
                         (again != Again::kSame && o > 0);
    }
    for (const int v : inputs_[i])
      if (Value* given = memory_of(v); given && !forward_[i]) given->read_backward = true;
  }
  for (const int v : wanted_)
    if (Value* made = memory_of(v)) made->must_keep = true;
}

// The search over the nodes that compute something and the values that take memory, with its numbers for
// them.
RecomputationSearch Recomputation::make_search(const Footprint& footprint) {
  RecomputationSearch::Values values;
  numbers_.assign(values_.size(), -1);
  for (size_t v = 0; v < values_.size(); ++v) {
    const Value& value = values_[v];
    if (value.memory != static_cast<int>(v)) continue;
    numbers_[v] = static_cast<int>(values.bytes.size());
    values.bytes.push_back(value.bytes);
    values.must_keep.push_back(value.must_keep);
    values.read_backward.push_back(value.read_backward);
  }
  const auto number_of = [&](int v) {
    const int memory = v < 0 ? -1 : values_[static_cast<size_t>(v)].memory;
    return memory < 0 ? -1 : numbers_[static_cast<size_t>(memory)];
  };
  for (const int v : wanted_)
    if (const int number = number_of(v); number >= 0) values.wanted.push_back(number);
  std::vector<StepNode> nodes;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Footprint::OfNode& cost = footprint.nodes[i];
    StepNode node;
    for (const int v : inputs_[i])
      if (const int number = number_of(v); number >= 0) node.reads.push_back(number);
    for (const int v : outputs_[i])
      if (v >= 0 && values_[static_cast<size_t>(v)].memory == v) node.makes.push_back(number_of(v));
    node.scratch = cost.scratch;
    node.seconds = cost.seconds;
    node.forward = forward_[i];
    const int first = outputs_[i].empty() ? -1 : outputs_[i][0];
    if (cost.over >= 0 && first >= 0 && values_[static_cast<size_t>(first)].memory == first &&
        std::cmp_less(cost.over, inputs_[i].size()))
      node.over = number_of(inputs_[i][static_cast<size_t>(cost.over)]);
    if (!node.makes.empty() || node.scratch > 0 || (!cost.alias && !node.reads.empty()))
      nodes.push_back(std::move(node));
  }
  return RecomputationSearch(std::move(nodes), std::move(values));
}

std::optional<std::vector<Node>> Recomputation::fit(size_t bytes) {
  const auto found = search_->within(static_cast<size_t>(static_cast<double>(bytes) / scale_));
  if (!found) return std::nullopt;
  return rewrite(found->kept);
}

std::optional<std::vector<Node>> Recomputation::least(double seconds) {
  const auto found = search_->least(seconds);
  if (!found) return std::nullopt;
  return rewrite(found->kept);
}

bool Recomputation::is_dropped(const Kept& kept, const std::string& name) const {
  const auto at = index_.find(name);
  if (at == index_.end()) return false;
  const Value& value = values_[static_cast<size_t>(at->second)];
  // If the backward pass gives a value another shape, the value itself is recomputed, not the value with that
  // shape.
  if (value.memory < 0 || !forward_[static_cast<size_t>(value.producer)]) return false;
  return !kept[static_cast<size_t>(numbers_[static_cast<size_t>(value.memory)])];
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
  const auto dropped = [&](const std::string& name) { return is_dropped(kept, name); };
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
    if (!forward_[i] && !folded_[i]) {
      for (const std::string& input : values_read(node)) make(input, make);
      for (std::string& input : node.inputs) input = resolve(input);
    }
    if (node.has_output(0)) made_at[node.outputs[0]] = out.size();
    out.push_back(std::move(node));
  }
  return out;
}

}  // namespace ortrain
