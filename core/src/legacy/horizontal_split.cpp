// Finds the blocks of a model that can be divided among processes, and replaces each with the share of this
// process: parts of the weights, and MegatronF and MegatronG at the borders. How one node is divided is
// stated elsewhere (partition_rules.cpp), so this file has no rule of any operator.
#include "legacy/horizontal_split.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "infer/value_types.h"
#include "legacy/ranks.h"
#include "op/operator.h"
#include "passes/decompose.h"
#include "runtime/error.h"

namespace ortrain {

Tensor part_of(const Tensor& whole, const Partition& partition, int64_t processes, int64_t process) {
  const auto axis = static_cast<size_t>(partition.axis);
  Shape shape = whole.shape();
  const int64_t outer = element_count(shape, 0, axis) * (shape[axis] / partition.length());
  const int64_t inner = element_count(shape, axis + 1, shape.size());
  shape[axis] /= processes;
  const Tensor part(whole.dtype(), shape);
  const std::byte* from = whole.raw();
  std::byte* to = part.raw();
  for (int64_t o = 0; o < outer; ++o)
    for (const int64_t section : partition.sections) {
      const size_t bytes = bytes_of(whole.dtype(), section / processes * inner);
      std::memcpy(to, from + static_cast<size_t>(process) * bytes, bytes);
      from += static_cast<size_t>(processes) * bytes;
      to += bytes;
    }
  return part;
}

namespace {

class Splitter {
 public:
  Splitter(Model model, const TrainingParameters& p)
      : model_(std::move(model)),
        whole_(model_),
        types_(whole_),
        p_(p),
        processes_(p.horizontal_parallel_size),
        process_(place_of(p).horizontal) {
    for (const std::string& name : whole_.graph.initializer_order)
      if (is_floating(whole_.graph.initializers.at(name).dtype()) &&
          (p.weights_to_train.empty() || p.weights_to_train.count(name)) &&
          !p.weights_not_to_train.count(name))
        trained_.insert(name);
    for (const Node& node : whole_.graph.nodes) note_origin(node);
    index();
  }

  HorizontalSplit run() {
    std::vector<std::string> products;
    for (const Node& node : graph_.nodes)
      if (sum_of(node)) products.push_back(node.outputs[0]);
    for (const std::string& product : products) {
      const auto made = producer_.find(product);
      if (made == producer_.end() || taken_.count(product)) continue;
      if (find_block(made->second)) apply();
    }
    for (const auto& [name, whole] : weights_) shared_.erase(whole.name);
    std::vector<std::string> kept;
    for (const auto& [weight, reader] : shared_)
      kept.push_back(concat("every process has all of the weight \"", weight, "\", because ", reader,
                            " reads it outside of the block that could be divided"));
    require(
        found_, ErrorCode::kInvalidArgument, "horizontal_parallel_size is ", processes_,
        ", but no part of the model can be divided among that many processes: expected two matrix products "
        "with weights and, between them, only nodes that compute columns or heads independently; the number "
        "of columns or heads must be a multiple of ",
        processes_, kept.empty() ? "" : "; ", kept.empty() ? "" : kept[0]);
    for (std::string& warning : kept) warning = concat("horizontal_parallel_size: ", warning);
    graph_.sort();
    graph_.remove_unused_initializers();
    return {std::move(model_), std::move(weights_), std::move(kept)};
  }

 private:
  using Dims = std::vector<Dim>;
  const Dims* dims(const std::string& value) const {
    const std::optional<Dims>& known = types_.info(value).dims;
    return value.empty() || !known ? nullptr : &*known;
  }

  // Notes whether the outputs of a node follow from initializers only, and whether trained weights are among
  // these.
  void note_origin(const Node& node) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (!op || op->traits.impure) return;
    bool trains = false;
    for (const std::string& value : values_read(node)) {
      const bool is_initializer = whole_.graph.is_initializer(value);
      if (!is_initializer && !fixed_.count(value)) return;
      trains |= is_initializer ? trained_.count(value) > 0 : fixed_.at(value);
    }
    for (const std::string& output : node.outputs) fixed_[output] = trains;
  }
  bool is_fixed(const std::string& value) const {
    return whole_.graph.is_initializer(value) || fixed_.count(value) > 0;
  }
  bool is_constant(const std::string& value) const {
    if (whole_.graph.is_initializer(value)) return trained_.count(value) == 0;
    const auto at = fixed_.find(value);
    return at != fixed_.end() && !at->second;
  }

  void index() {
    producer_.clear();
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const std::string& output : graph_.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
  }

  // The axes of a product of a value with weights.
  std::optional<SummedAxes> sum_of(const Node& node) const {
    if (!node.has_input(0) || !node.has_input(1) || !dims(node.inputs[0]) || !dims(node.inputs[1])) return {};
    if (is_fixed(node.inputs[0]) || !is_fixed(node.inputs[1])) return {};
    const auto rank = [&](size_t i) { return static_cast<int64_t>(dims(node.inputs[i])->size()); };
    return summed_axes(node, rank(0), rank(1));
  }

  // ---- finding ----

  struct Block {
    size_t sum = 0;
    SummedAxes axes;
    std::unordered_map<size_t, NodePartition> nodes;
    std::map<std::string, Partition> values;
    std::set<std::string> rows;  // values from which the weights of the sum follow
  };

  bool find_block(size_t sum) {
    block_ = {};
    block_.sum = sum;
    const Node& node = graph_.nodes[sum];
    block_.axes = *sum_of(node);
    const Dim& length = (*dims(node.inputs[0]))[static_cast<size_t>(block_.axes.left)];
    if (!length.known() || length.value == 0) return false;
    if (!want(node.inputs[1], {block_.axes.right, {length.value}, 1})) return false;
    for (const auto& [value, partition] : block_.values) block_.rows.insert(value);
    if (!want(node.inputs[0], {block_.axes.left, {length.value}, 1})) return false;
    for (const auto& [n, partition] : block_.nodes)
      for (size_t i = 0; i < partition.inputs.size(); ++i)
        if (!partition.inputs[i] && block_.values.count(graph_.nodes[n].inputs[i]) &&
            !types_.constant(graph_.nodes[n].inputs[i]))
          return false;  // a node needs all of a value that another node divides
    return std::any_of(block_.values.begin(), block_.values.end(), [&](const auto& entry) {
      return !block_.rows.count(entry.first) && graph_.is_initializer(entry.first) &&
             dims(entry.first)->size() >= 2;
    });
  }

  bool want(const std::string& value, const Partition& partition) {
    std::vector<std::pair<std::string, Partition>> open = {{value, partition}};
    while (!open.empty()) {
      auto [name, raw] = std::move(open.back());
      open.pop_back();
      const Partition wanted = simplified(std::move(raw));
      if (const auto known = block_.values.find(name); known != block_.values.end()) {
        if (known->second != wanted) return false;
        continue;
      }
      for (const int64_t section : wanted.sections)
        if (section % processes_ != 0) return false;
      if (const Tensor* constant = types_.constant(name)) {
        if (size_of(constant->dtype()) == 0) return false;
        block_.values[name] = wanted;
        continue;
      }
      const auto made = producer_.find(name);
      if (made == producer_.end() || made->second == block_.sum || taken_.count(name)) return false;
      const Node& node = graph_.nodes[made->second];
      const std::optional<NodePartition> found = divide_node(node, name, wanted);
      if (!found) return false;
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if (node.has_output(o)) block_.values[node.outputs[o]] = simplified(*found->outputs[o]);
      if (block_.values.at(name) != wanted) return false;
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (found->inputs[i]) open.emplace_back(node.inputs[i], *found->inputs[i]);
      block_.nodes[made->second] = *found;
    }
    return true;
  }

  std::optional<NodePartition> divide_node(const Node& node, const std::string& output,
                                           const Partition& wanted) const {
    Node read = node;  // without the outputs that nothing reads
    PartitionQuery query{read, model_.opset(node.domain), {}, {}, {}, 0, wanted, processes_};
    for (const std::string& input : node.inputs) {
      if (!input.empty() && !dims(input)) return std::nullopt;
      query.inputs.push_back(dims(input));
      query.constants.push_back(input.empty() ? nullptr : types_.known(input));
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const bool is_read = node.has_output(o) && uses().count(node.outputs[o]);
      if (is_read && !dims(node.outputs[o])) return std::nullopt;
      query.outputs.push_back(is_read ? dims(node.outputs[o]) : nullptr);
      if (!is_read) read.outputs[o].clear();
      if (node.outputs[o] == output) query.output = o;
    }
    std::optional<NodePartition> found = partition_of(query);
    if (!found) return std::nullopt;
    found->inputs.resize(node.inputs.size());
    found->outputs.resize(node.outputs.size());
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (query.outputs[o] && !found->outputs[o]) return std::nullopt;
      if (node.has_output(o) && !query.outputs[o]) found->outputs[o] = found->outputs[query.output];
    }
    return found;
  }

  const std::unordered_map<std::string, int>& uses() const {
    if (uses_.empty()) uses_ = count_uses(graph_);
    return uses_;
  }

  // ---- dividing ----

  // Makes the block's changes, unless something outside of it needs a value that is divided.
  void apply() {
    const Model before = model_;
    const auto weights = weights_;
    const auto whole_inputs = whole_inputs_;
    std::unordered_set<std::string> inside;
    for (const auto& [n, partition] : block_.nodes)
      inside.insert(graph_.nodes[n].outputs.begin(), graph_.nodes[n].outputs.end());
    divide_weights();
    std::vector<Node> added;
    std::unordered_map<std::string, std::string> renamed;
    for (const auto& [n, partition] : block_.nodes) {
      Node& node = graph_.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (!partition.inputs[i]) enter(node.inputs[i], added);
      for (const auto& [i, integers] : partition.integers)
        node.inputs[i] = replaced(node.inputs[i], node.outputs[0], integers, added);
      for (const auto& [name, value] : partition.attributes) node.attributes[name] = value;
      // Random numbers depend on the name of the output; each process draws its own.
      const Operator* op = find_operator(node.domain, node.op_type);
      if (op->traits.impure) {
        const std::string name = graph_.unique_name(concat(node.outputs[0], "_rank_", process_));
        renamed[node.outputs[0]] = name;
        inside.insert(name);
      }
    }
    restore_dims(added, inside);
    const std::string part = add_up(added);
    inside.insert(part);
    for (Node& node : graph_.nodes) {
      for (std::string& input : node.inputs)
        if (const auto name = renamed.find(input); name != renamed.end()) input = name->second;
      for (std::string& output : node.outputs)
        if (const auto name = renamed.find(output); name != renamed.end()) output = name->second;
    }
    graph_.nodes.insert(graph_.nodes.end(), added.begin(), added.end());
    graph_.sort();
    remove_unused();
    if (is_read_outside(inside, renamed)) {
      model_ = before;
      weights_ = weights;
      whole_inputs_ = whole_inputs;
    } else {
      taken_.insert(inside.begin(), inside.end());
      found_ = true;
      for (const auto& [value, partition] : block_.values) graph_.value_info.erase(value);
    }
    index();
    uses_.clear();
  }

  void divide_weights() {
    for (const auto& [value, partition] : block_.values) {
      const Tensor* whole = types_.constant(value);
      if (!whole) continue;
      const bool rows = block_.rows.count(value) > 0, trains = trained_.count(value) > 0;
      const std::string name =
          graph_.unique_name(concat(value, rows ? "_row_rank_" : "_column_rank_", process_));
      graph_.add_initializer(name, part_of(*whole, partition, processes_, process_));
      const auto read_part = [&, &value = value](Node& node, const auto& is_divided) {
        for (size_t i = 0; i < node.inputs.size(); ++i)
          if (node.inputs[i] == value && is_divided(i)) node.inputs[i] = name;
      };
      for (auto& [n, own] : block_.nodes)
        read_part(graph_.nodes[n], [&, &own = own](size_t i) { return own.inputs[i].has_value(); });
      read_part(graph_.nodes[block_.sum], [](size_t i) { return i < 2; });
      if (trains) weights_[name] = {value, whole->shape(), partition, rows};
    }
  }

  std::string constant(const std::string& base, Tensor value) {
    const std::string name = graph_.unique_name(base);
    graph_.add_initializer(name, std::move(value));
    return name;
  }

  std::string replaced(const std::string& given, const std::string& owner, std::vector<int64_t> integers,
                       std::vector<Node>& added) {
    const Tensor keeps(DType::kBool, Shape{static_cast<int64_t>(integers.size())});
    for (size_t k = 0; k < integers.size(); ++k) keeps.data<bool>()[k] = integers[k] == kAsGiven;
    const bool any = std::count(integers.begin(), integers.end(), kAsGiven) > 0;
    const std::string numbers = constant(owner + "_part_shape", Tensor::of(integers));
    if (!any) return numbers;
    const std::string made = graph_.unique_name(owner + "_part_where");
    added.push_back({"",
                     "Where",
                     graph_.unique_name(made + "/Where"),
                     {constant(owner + "_part_given", keeps), given, numbers},
                     {made},
                     {}});
    return made;
  }

  // Nodes that read the dimensions of a divided value get the dimensions of the whole value.
  void restore_dims(std::vector<Node>& added, std::unordered_set<std::string>& inside) {
    for (Node& node : graph_.nodes) {
      if (node.inputs.size() != 1 || !block_.values.count(node.inputs[0])) continue;
      if (types_.constant(node.inputs[0])) continue;  // a constant stays whole
      const Partition& partition = block_.values.at(node.inputs[0]);
      const auto rank = static_cast<int64_t>(dims(node.inputs[0])->size());
      const std::optional<DimPlace> found = place_of_dim(node, partition.axis, rank);
      if (!found) continue;
      const std::string result = node.outputs[0];
      if (found->place) {
        std::vector<int64_t> factors(found->length, 1);
        factors[*found->place] = processes_;
        node.outputs[0] = graph_.unique_name(result + "_part");
        const std::string times = constant(result + "_factors", Tensor::of(factors));
        added.push_back(
            {"", "Mul", graph_.unique_name(result + "/Mul"), {node.outputs[0], times}, {result}, {}});
      }
      inside.insert(node.outputs[0]);
    }
  }

  // A value that every process needs whole: the gradients of all of them count.
  void enter(std::string& value, std::vector<Node>& added) {
    if (value.empty() || is_constant(value) || !is_floating(types_.info(value).dtype)) return;
    std::string& entered = whole_inputs_[value];
    if (entered.empty()) {
      entered = graph_.unique_name(value + "_entering");
      added.push_back(border("MegatronF", value, entered));
    }
    value = entered;
  }

  static Node border(const char* type, const std::string& from, const std::string& to) {
    return {kMicrosoft, type, to + "/" + type, {from}, {to}, {{"group_type", int64_t{1}}}};
  }

  // Returns the name of this process's part of the sum.
  std::string add_up(std::vector<Node>& added) {
    Node& node = graph_.nodes[block_.sum];
    const std::string result = node.outputs[0];
    const std::string part = graph_.unique_name(result + "_part");
    node.outputs[0] = part;
    if (!block_.axes.added) {
      added.push_back(border("MegatronG", part, result));
      return part;
    }
    const std::string sum = graph_.unique_name(result + "_sum");
    added.push_back(border("MegatronG", part, sum));
    const size_t at = *block_.axes.added;
    added.push_back({"", "Add", graph_.unique_name(result + "/Add"), {sum, node.inputs[at]}, {result}, {}});
    node.inputs[at].clear();
    while (node.inputs.back().empty()) node.inputs.pop_back();
    return part;
  }

  // The loss need not be an output.
  void remove_unused() {
    const std::vector<ValueInfo> outputs = graph_.outputs;
    if (!graph_.is_output(p_.loss_output_name))
      graph_.outputs.push_back({p_.loss_output_name, DType::kUndefined, std::nullopt});
    graph_.remove_unused_nodes();
    graph_.outputs = outputs;
  }

  bool is_read_outside(const std::unordered_set<std::string>& inside,
                       const std::unordered_map<std::string, std::string>& renamed) {
    std::unordered_set<std::string> divided;
    for (const auto& [value, partition] : block_.values) {
      if (graph_.is_output(value) || value == p_.loss_output_name) return true;
      const auto name = renamed.find(value);
      if (types_.constant(value) == nullptr) divided.insert(name == renamed.end() ? value : name->second);
      if (trained_.count(value)) divided.insert(value);  // all nodes that read it must read the part
    }
    bool found = false;
    for (const Node& node : graph_.nodes) {
      const bool is_inside = std::any_of(node.outputs.begin(), node.outputs.end(),
                                         [&](const std::string& output) { return inside.count(output); });
      for (const std::string& value : values_read(node)) {
        if (!divided.count(value)) continue;
        if (trained_.count(value)) shared_.emplace(value, node.label());
        found |= trained_.count(value) || !is_inside;
      }
    }
    return found;
  }

  Model model_;
  const Model whole_;
  const ValueTypes types_;  // of the whole model
  const TrainingParameters& p_;
  const int64_t processes_, process_;
  Graph& graph_ = model_.graph;
  std::set<std::string> trained_;
  std::unordered_map<std::string, bool> fixed_;  // by value: whether weights that are trained are in it
  std::unordered_map<std::string, size_t> producer_;
  mutable std::unordered_map<std::string, int> uses_;
  Block block_;
  std::unordered_set<std::string> taken_;  // values of blocks
  std::unordered_map<std::string, std::string> whole_inputs_;
  std::map<std::string, DividedWeight> weights_;
  std::map<std::string, std::string> shared_;  // weights that were not divided, with a node that needs all
  bool found_ = false;
};

}  // namespace

HorizontalSplit split_layers(const Model& forward, const TrainingParameters& parameters) {
  Model model = forward;
  model.opsets.emplace(kMicrosoft, 1);
  decompose_operators(model, DecomposeFor::kGradient);
  return Splitter(std::move(model), parameters).run();
}

}  // namespace ortrain
