#include "op/custom.h"

#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "op/dynamic.h"
#include "op/operator.h"

namespace ortrain {
namespace {

// ---- nodes of sessions ----

struct Numbers {
  std::mutex busy;
  int64_t last = 0;
  std::map<int64_t, std::weak_ptr<CustomNode>> nodes;
};
Numbers& numbers() {
  static Numbers all;
  return all;
}

std::shared_ptr<CustomNode> custom_node(const Node& node) {
  Numbers& all = numbers();
  const std::lock_guard lock(all.busy);
  const auto found = all.nodes.find(node.int_or(kCustomNumber, 0));
  std::shared_ptr<CustomNode> custom = found == all.nodes.end() ? nullptr : found->second.lock();
  require(custom != nullptr, ErrorCode::kFail, node.label(), ": its session does not exist any more");
  return custom;
}

constexpr Operator kBound = {.domain = kCustomDomain,
                             .type = "Node",
                             .rules = {.types = [](TypeContext& c) { custom_node(c.node())->types(c); }},
                             .traits = {.impure = true},
                             .kernels = {.run = [](DynamicContext& c) { custom_node(c.node())->run(c); }}};

// ---- gradients ----

struct Declared {
  std::string domain, type;
  std::shared_ptr<const Model> gradient;  // null: the derivative is zero
  Operator op = {};
};
struct Declarations {
  std::mutex busy;
  std::map<std::pair<std::string, std::string>, Declared> all;  // never erased: pointers to `op` are kept
};
Declarations& declarations() {
  static Declarations all;
  return all;
}
std::atomic<bool> any_declared = false;

// Outputs have the type of the first input, which is also the default for operators without a rule for types.
void declared_types(TypeContext& c) {
  const DType type = c.node().has_input(0) ? c.input(0).dtype : DType::kUndefined;
  for (size_t o = 0; o < c.node().outputs.size(); ++o)
    if (c.node().has_output(o)) c.output(o, type, std::nullopt);
}

// The index in a name such as "GO(2)"; nothing if the name does not have that form.
std::optional<size_t> index_in(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind) || !name.ends_with(")") || name.size() < kind.size() + 3) return std::nullopt;
  name.remove_prefix(kind.size());
  if (name.front() != '(') return std::nullopt;
  name.remove_prefix(1);
  name.remove_suffix(1);
  size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  return error == std::errc() && end == name.data() + name.size() ? std::optional(index) : std::nullopt;
}

// The value of the differentiated graph that an input of the gradient represents.
Name value_behind(GradientContext& g, const std::string& input) {
  if (const auto i = index_in(input, "I")) return g.has_x(*i) ? g.x(*i) : "";
  if (const auto o = index_in(input, "GO")) {
    if (!g.has_y(*o)) return "";
    const Name dy = g.dy(*o);
    // The loss does not depend on that output, so its gradient is zero.
    return dy.empty() ? g("Sub", {g.y(*o), g.y(*o)}) : dy;
  }
  const auto o = index_in(input, "O");
  return o && g.has_y(*o) ? g.y(*o) : "";
}

// Writes the nodes of the registered function under new names.
void declared_gradient(GradientContext& g) {
  std::shared_ptr<const Model> gradient;
  {
    const std::lock_guard lock(declarations().busy);
    gradient = declarations().all.at({g.node().domain, g.node().op_type}).gradient;
  }
  const Graph& function = gradient->graph;
  std::map<std::string, std::string> names = {{"", ""}};
  for (const ValueInfo& input : function.inputs) names[input.name] = value_behind(g, input.name);
  for (const auto& [name, value] : function.initializers) names[name] = g.constant(value);
  for (const Node& node : function.nodes) {
    Names inputs;
    for (const std::string& input : node.inputs) inputs.push_back(names.at(input));
    while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
    const Names outputs = g.emit(node.op_type, inputs, node.outputs.size(), node.attributes, node.domain);
    for (size_t o = 0; o < outputs.size(); ++o) names[node.outputs[o]] = outputs[o];
    names[""] = "";
  }
  for (const ValueInfo& output : function.outputs)
    if (const auto i = index_in(output.name, "GI"); i && g.needs(*i)) g.set(*i, names.at(output.name));
}

void declare(const std::string& domain, const std::string& type, std::shared_ptr<const Model> gradient) {
  Declarations& declared = declarations();
  const auto [at, fresh] = declared.all.try_emplace({domain, type});
  Declared& it = at->second;
  it.gradient = std::move(gradient);
  if (fresh) {
    it.domain = domain;
    it.type = type;
  }
  it.op = {.domain = it.domain,
           .type = it.type,
           .rules = {.gradient = it.gradient ? declared_gradient : nullptr, .types = declared_types},
           .traits = {.stops_gradient = !it.gradient, .impure = true}};
}

}  // namespace

int64_t number_of(const std::shared_ptr<CustomNode>& node) {
  Numbers& all = numbers();
  const std::lock_guard lock(all.busy);
  std::erase_if(all.nodes, [](const auto& entry) { return entry.second.expired(); });
  all.nodes.emplace(++all.last, node);
  return all.last;
}

void register_gradient(const std::string& domain, const std::string& type, const Model& gradient) {
  require(!type.empty(), ErrorCode::kInvalidArgument, "the operator has no name, expected one");
  const std::string name = domain.empty() ? type : concat(domain, ".", type);
  const auto is_own = [](const std::string& of, const std::string& op_type) {
    const Operator* op = find_operator(of, op_type);
    return op && !is_only_declared(*op);
  };
  require(!is_own(domain, type), ErrorCode::kInvalidArgument, "the operator ", name,
          " is one of this library, whose gradient cannot be replaced");
  const Graph& function = gradient.graph;
  for (const ValueInfo& input : function.inputs)
    require(index_in(input.name, "I") || index_in(input.name, "O") || index_in(input.name, "GO"),
            ErrorCode::kInvalidArgument, "the gradient of ", name, " has the input \"", input.name,
            "\", expected I(i), O(o) or GO(o) with an index");
  for (const ValueInfo& output : function.outputs)
    require(index_in(output.name, "GI").has_value(), ErrorCode::kInvalidArgument, "the gradient of ", name,
            " has the output \"", output.name, "\", expected GI(i) with an index");
  for (const Node& node : function.nodes)
    for (const auto& [attribute, value] : node.attributes)
      require(!std::holds_alternative<std::shared_ptr<Graph>>(value), ErrorCode::kNotImplemented,
              "the gradient of ", name, ": ", node.label(), " has a subgraph, which is not supported here");
  const bool is_zero = function.outputs.empty();
  std::vector<std::pair<std::string, std::string>> unknown;
  for (const Node& node : function.nodes)
    if (!find_operator(node.domain, node.op_type)) unknown.emplace_back(node.domain, node.op_type);
  const std::lock_guard lock(declarations().busy);
  for (const auto& [of, op_type] : unknown)
    if (!declarations().all.contains({of, op_type})) declare(of, op_type, nullptr);
  declare(domain, type, is_zero ? nullptr : std::make_shared<const Model>(gradient));
  any_declared = true;
}

const Operator* find_custom_operator(std::string_view domain, std::string_view type) {
  if (domain == kCustomDomain) return &kBound;
  if (!any_declared) return nullptr;
  const std::lock_guard lock(declarations().busy);
  const auto found = declarations().all.find({std::string(domain), std::string(type)});
  return found == declarations().all.end() ? nullptr : &found->second.op;
}

bool is_only_declared(const Operator& op) { return op.rules.types == declared_types; }

}  // namespace ortrain
