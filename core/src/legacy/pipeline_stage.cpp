// Cuts a model into the stages of a pipeline at the values that the parameters name, and returns the stage of
// one process: its nodes, its weights, and the values that it receives and sends. The scalar whose gradient
// replaces the loss in all stages but the last is added here too.
#include "legacy/pipeline_stage.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "infer/value_types.h"
#include "legacy/ranks.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace ortrain {
namespace {

constexpr const char* kMember = "pipeline_cut_info_string";

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// A value of a cut, and the nodes that read it behind the cut; without names, all nodes behind the cut.
struct Edge {
  std::string value;
  std::vector<std::string> readers;
};

// Collects the values that a node reads, in its subgraphs too.
void collect_reads(const Node& node, std::set<std::string>& reads) {
  for (const std::string& name : node.inputs)
    if (!name.empty()) reads.insert(name);
  for (const auto& [name, attribute] : node.attributes)
    if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute); sub && *sub)
      for (const Node& inner : (*sub)->nodes) collect_reads(inner, reads);
}

class Cutter {
 public:
  Cutter(const Model& model, const TrainingParameters& parameters)
      : model_(model), graph_(model.graph), p_(parameters), last_(parameters.pipeline_parallel_size - 1) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      reads_.emplace_back();
      collect_reads(graph_.nodes[n], reads_.back());
      for (const std::string& output : graph_.nodes[n].outputs)
        if (!output.empty()) maker_[output] = n;
    }
  }

  PipelineStage stage(int64_t number) {
    read_cuts();
    assign();
    check_crossings();
    check_weights();
    return build(number);
  }

 private:
  void read_cuts();
  void assign();
  void check_crossings() const;
  void check_weights() const;
  PipelineStage build(int64_t number) const;
  void add_products(PipelineStage& stage) const;

  bool is_in_cut(int64_t cut, const std::string& value) const {
    const auto& edges = cuts_[static_cast<size_t>(cut)];
    return std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.value == value; });
  }
  std::string label(size_t node) const { return graph_.nodes[node].label(); }

  const Model& model_;
  const Graph& graph_;
  const TrainingParameters& p_;
  const int64_t last_;
  std::vector<std::set<std::string>> reads_;       // by node
  std::unordered_map<std::string, size_t> maker_;  // the node that makes a value
  std::vector<std::vector<Edge>> cuts_;
  std::vector<int64_t> stage_of_;  // by node
};

void Cutter::read_cuts() {
  require(!p_.pipeline_cut_info_string.empty(), ErrorCode::kInvalidArgument, kMember, ": expected ",
          counted(last_, "cut"), " with pipeline_parallel_size ", p_.pipeline_parallel_size, ", found none");
  std::vector<std::string> known;
  for (const auto& [value, node] : maker_) known.push_back(value);
  for (const std::string& text : split(p_.pipeline_cut_info_string, ',')) {
    std::vector<Edge>& edges = cuts_.emplace_back();
    for (const std::string& part : split(text, ':')) {
      Edge edge{part, {}};
      for (size_t at = part.find('-'); !maker_.count(edge.value) && at != std::string::npos;
           at = part.find('-', at + 1))
        if (maker_.count(part.substr(0, at))) edge = {part.substr(0, at), split(part.substr(at + 1), '/')};
      require(maker_.count(edge.value) > 0, ErrorCode::kInvalidArgument, kMember,
              ": no node of the model computes the value \"", edge.value, "\"",
              suggestion(edge.value, known));
      edges.push_back(std::move(edge));
    }
  }
  require(static_cast<int64_t>(cuts_.size()) == last_, ErrorCode::kInvalidArgument, kMember, ": expected ",
          counted(last_, "cut"), " with pipeline_parallel_size ", p_.pipeline_parallel_size, ", found ",
          cuts_.size());
}

// The nodes that a cut's values need belong to the stage before the cut, unless an earlier stage has them.
// All other nodes belong to the last stage.
void Cutter::assign() {
  stage_of_.assign(graph_.nodes.size(), last_);
  std::vector<bool> assigned(graph_.nodes.size(), false);
  for (size_t cut = 0; cut < cuts_.size(); ++cut) {
    std::vector<std::string> open;
    for (const Edge& edge : cuts_[cut]) open.push_back(edge.value);
    while (!open.empty()) {
      const auto made = maker_.find(open.back());
      open.pop_back();
      if (made == maker_.end() || assigned[made->second]) continue;
      assigned[made->second] = true;
      stage_of_[made->second] = static_cast<int64_t>(cut);
      open.insert(open.end(), reads_[made->second].begin(), reads_[made->second].end());
    }
  }
  for (size_t cut = 0; cut < cuts_.size(); ++cut)
    for (const Edge& edge : cuts_[cut])
      for (const std::string& reader : edge.readers) {
        const auto is_reader = [&](size_t n) {
          const Node& node = graph_.nodes[n];
          return reads_[n].count(edge.value) && stage_of_[n] > static_cast<int64_t>(cut) &&
                 (node.name == reader ||
                  std::find(node.outputs.begin(), node.outputs.end(), reader) != node.outputs.end());
        };
        bool found = false;
        for (size_t n = 0; n < graph_.nodes.size(); ++n) found |= is_reader(n);
        require(found, ErrorCode::kInvalidArgument, kMember, ": no node \"", reader, "\" reads \"",
                edge.value, "\" after cut ", cut + 1);
      }
}

void Cutter::check_crossings() const {
  const auto check = [&](const std::string& value, int64_t to, const std::string& reader) {
    const auto made = maker_.find(value);
    if (made == maker_.end()) return;
    for (int64_t cut = stage_of_[made->second]; cut < to; ++cut)
      require(is_in_cut(cut, value), ErrorCode::kInvalidArgument, kMember, ": ", reader, " in stage ", to + 1,
              " reads \"", value, "\", which ", label(made->second), " computes in stage ",
              stage_of_[made->second] + 1, "; expected this value in cut ", cut + 1);
  };
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    for (const std::string& value : reads_[n]) check(value, stage_of_[n], label(n));
  for (size_t cut = 0; cut < cuts_.size(); ++cut)
    for (const Edge& edge : cuts_[cut]) check(edge.value, static_cast<int64_t>(cut), "the next cut");
  const auto loss = maker_.find(p_.loss_output_name);
  require(loss == maker_.end() || stage_of_[loss->second] == last_, ErrorCode::kInvalidArgument, kMember,
          ": the loss \"", p_.loss_output_name, "\" is computed in stage ",
          loss == maker_.end() ? 0 : stage_of_[loss->second] + 1, ", expected in the last one, ", last_ + 1);
}

// A weight belongs to one stage, whose process updates it.
void Cutter::check_weights() const {
  std::map<std::string, std::set<int64_t>> stages;
  for (size_t n = 0; n < graph_.nodes.size(); ++n)
    for (const std::string& name : reads_[n])
      if (graph_.is_initializer(name) && is_floating(graph_.initializers.at(name).dtype()))
        stages[name].insert(stage_of_[n]);
  for (const auto& [name, in] : stages) {
    const bool trains = p_.weights_to_train.empty() || p_.weights_to_train.count(name);
    require(in.size() == 1 || !trains || p_.weights_not_to_train.count(name), ErrorCode::kInvalidArgument,
            kMember, ": stages ", *in.begin() + 1, " and ", *in.rbegin() + 1, " both read the weight \"",
            name,
            "\"; expected cuts that leave the weight in one stage, or the weight in weights_not_to_train");
  }
}

PipelineStage Cutter::build(int64_t number) const {
  const ValueTypes types(model_);
  const auto info_of = [&](const std::string& value) {
    ValueInfo info = types.info(value);
    info.name = value;
    forget_made_up_names(info);
    return info;
  };
  PipelineStage stage;
  stage.model = model_;
  Graph& graph = stage.model.graph;
  graph.nodes.clear();
  graph.outputs.clear();
  std::set<std::string> reads;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    if (stage_of_[n] != number) continue;
    graph.nodes.push_back(graph_.nodes[n]);
    reads.insert(reads_[n].begin(), reads_[n].end());
  }
  require(!graph.nodes.empty(), ErrorCode::kInvalidArgument, kMember, ": stage ", number + 1,
          " has no nodes");
  std::erase_if(graph.inputs, [&](const ValueInfo& info) { return !reads.count(info.name); });
  if (number > 0)
    for (const Edge& edge : cuts_[static_cast<size_t>(number - 1)]) {
      stage.received.push_back(edge.value);
      graph.inputs.push_back(info_of(edge.value));
    }
  for (const ValueInfo& info : graph_.outputs)
    if (const auto made = maker_.find(info.name); made != maker_.end() && stage_of_[made->second] == number)
      graph.outputs.push_back(info);
  stage.loss = p_.loss_output_name;
  if (number < last_) {
    for (const Edge& edge : cuts_[static_cast<size_t>(number)]) {
      stage.sent.push_back(edge.value);
      if (!graph.is_output(edge.value) && !graph.is_input(edge.value))
        graph.outputs.push_back(info_of(edge.value));
    }
    add_products(stage);
  }
  graph.remove_unused_initializers();
  return stage;
}

void Cutter::add_products(PipelineStage& stage) const {
  Graph& graph = stage.model.graph;
  const auto add = [&](const char* type, const std::vector<std::string>& inputs, const std::string& output) {
    Node node;
    node.op_type = type;
    node.name = graph.unique_name(output + "/" + type);
    node.inputs = inputs;
    node.outputs = {output};
    if (std::string(type) == "ReduceSum") node.attributes["keepdims"] = int64_t{0};
    graph.nodes.push_back(std::move(node));
    return output;
  };
  std::string sum;
  for (const std::string& value : stage.sent) {
    ValueInfo gradient = *graph.info(value);
    if (!is_floating(gradient.dtype)) continue;
    gradient.name = value + "_grad";
    require(graph.unique_name(gradient.name) == gradient.name, ErrorCode::kInvalidArgument, kMember,
            ": the model has a value \"", gradient.name, "\" already");
    graph.inputs.push_back(gradient);
    const std::string product = add("Mul", {value, gradient.name}, graph.unique_name(value + "_product"));
    const std::string part = add("ReduceSum", {product}, graph.unique_name(value + "_products"));
    sum = sum.empty() ? part : add("Add", {sum, part}, graph.unique_name("products"));
  }
  require(!sum.empty(), ErrorCode::kInvalidArgument, kMember, ": the cut after stage ",
          place_of(p_).stage + 1, " has no floating-point value, so no gradient can pass through the cut");
  stage.loss = sum;
}

}  // namespace

PipelineStage pipeline_stage(const Model& model, const TrainingParameters& parameters) {
  return Cutter(model, parameters).stage(place_of(parameters).stage);
}

}  // namespace ortrain
