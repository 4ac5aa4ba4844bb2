#include "graph/onnx_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "graph/onnx_io.h"
#include "graph/onnx_tensor.h"
#include "runtime/text.h"

namespace ortrain {

using onnx::text_of;

namespace {

constexpr int kMaxFunctionDepth = 100;
// Functions that call each other can expand to more nodes than fit in memory.
constexpr size_t kMaxInlined = 200'000;
constexpr int64_t kAddedOpset = 17;  // of a model that imports none of the ONNX operators
// The version of other domains that a model uses without importing them, as models with custom operators
// often do.
constexpr int64_t kUnstatedOpset = 1;

// "ai.onnx" and "" are one domain.
std::string domain_name(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }
std::string shown_domain(const std::string& domain) { return domain.empty() ? "ai.onnx" : domain; }

// Text for a message, built only if the message is needed, which is rare.
template <typename F>
struct Lazy {
  F text;
  mutable std::string made = {};
  operator const std::string&() const { return made = text(); }
};
template <typename F>
Lazy(F) -> Lazy<F>;

// A string that is a name. The format requires UTF-8; anything else would fail later, far from its cause.
const std::string& checked_name(const std::string& name, const char* what) {
  if (is_utf8(name)) return name;
  std::string shown;
  for (const char c : name) shown += c >= 0x20 && c < 0x7F ? c : '?';
  fail(ErrorCode::kInvalidGraph, "the ", what, " \"", shown, "\" is not valid UTF-8");
}

// The call of a function whose body is being read.
struct Call {
  const onnx::FunctionProto* function = nullptr;
  Attributes attributes;  // given by the caller, or the function's defaults
  const Call* caller = nullptr;
};

// Names in the graph being read. Inside functions every value gets a unique name; elsewhere names are kept.
struct Names {
  const Names* outer = nullptr;
  bool rename = false;
  std::unordered_map<std::string, std::string> renamed;

  // Null if the function does not define `name`.
  const std::string* find(const std::string& name) const {
    if (!rename) return &name;
    if (const auto found = renamed.find(name); found != renamed.end()) return &found->second;
    return outer != nullptr ? outer->find(name) : nullptr;
  }
};

class Reader {
 public:
  Reader(onnx::ModelProto& proto, const std::filesystem::path& folder, const ReadOptions& options)
      : proto_(proto),
        files_(folder, options.given.files, options.map_external),
        given_(options.given),
        limits_(options.limits),
        for_session_(options.notes != nullptr) {}

  Model read() {
    read_header();
    for (const auto& function : proto_.functions) {
      const std::string key = function_key(function.domain, function.name, function.overload);
      require(functions_.emplace(key, &function).second, ErrorCode::kInvalidGraph, "two functions are named ",
              shown_domain(domain_name(function.domain)), ".", function.name);
    }
    if (!functions_.empty()) collect_names(*proto_.graph);
    model_.graph = read_graph(proto_.graph.make(), Names{}, nullptr);
    for (const auto& [name, value] : given_.external)
      require(model_.graph.is_initializer(name), ErrorCode::kInvalidArgument,
              "a value was given for the initializer \"", name, "\", which the model does not have");
    require(!model_.graph.outputs.empty(), ErrorCode::kInvalidGraph, "the graph has no outputs");
    report_unsupported();
    settle_domains();
    model_.graph.sort();
    return std::move(model_);
  }

  // The facts besides the graph that the model states. For use after read(), which returned `graph`.
  ModelNotes notes(const Graph& graph) const {
    ModelNotes notes;
    notes.maps = maps_;
    notes.sparse = sparse_;
    notes.external = external_;
    notes.graph_description = checked_name(proto_.graph->doc_string, "graph description");
    for (const auto& input : proto_.graph->input) {
      // Up to IR version 3 all initializers are inputs; they are constants.
      if (graph.is_initializer(input.name) && proto_.ir_version > 3)
        notes.overridable.push_back(*graph.info(input.name));
      std::vector<std::string> denotations;
      for (const auto& dim : input.type->tensor_type->shape->dim)
        denotations.push_back(checked_name(dim.denotation, "denotation of a dimension"));
      if (std::any_of(denotations.begin(), denotations.end(), [](const auto& text) { return !text.empty(); }))
        notes.denotations.emplace(input.name, std::move(denotations));
    }
    return notes;
  }

 private:
  static std::string function_key(const std::string& domain, const std::string& name,
                                  const std::string& overload) {
    return domain_name(domain) + '\0' + name + '\0' + overload;
  }

  void read_header() {
    require(!proto_.opset_import.empty(), ErrorCode::kInvalidProtobuf,
            "expected an ONNX model, but it does not declare its operator set (opset_import)");
    require(proto_.ir_version >= kOldestIrVersion, ErrorCode::kInvalidProtobuf, "expected an IR version of ",
            kOldestIrVersion, " to ", kNewestIrVersion, ", found ", proto_.ir_version);
    require(proto_.ir_version <= kNewestIrVersion, ErrorCode::kNotImplemented, "its IR version is ",
            proto_.ir_version, "; versions up to ", kNewestIrVersion, " are supported");
    model_.ir_version = proto_.ir_version;
    model_.producer_name = checked_name(proto_.producer_name, "producer name");
    model_.producer_version = checked_name(proto_.producer_version, "producer version");
    model_.domain = checked_name(proto_.domain, "model domain");
    model_.doc_string = checked_name(proto_.doc_string, "model description");
    model_.model_version = proto_.model_version;
    for (const auto& entry : proto_.metadata_props)
      model_.metadata[checked_name(text_of(entry.key), "metadata key")] =
          checked_name(text_of(entry.value), "metadata value");
    for (const auto& opset : proto_.opset_import) import_opset(text_of(opset.domain), opset.version, nullptr);
    if (const auto onnx_opset = model_.opsets.find(""); onnx_opset != model_.opsets.end())
      require(onnx_opset->second >= kOldestOpset && onnx_opset->second <= kNewestOpset,
              ErrorCode::kNotImplemented, "it uses version ", onnx_opset->second,
              " of the ONNX operators; versions ", kOldestOpset, " to ", kNewestOpset, " are supported");
  }

  // The place of an initializer's data, as the model states it.
  static ExternalPlace place_of(const onnx::TensorProto& proto, size_t bytes) {
    ExternalPlace place{"", 0, bytes};
    for (const auto& entry : proto.external_data) {
      if (entry.key == "location") place.file = text_of(entry.value);
      if (entry.key == "offset") place.offset = std::stoll(text_of(entry.value));  // read_tensor() used it
    }
    return place;
  }

  // The value of an initializer: that of the model, or the value that was given in its place.
  Tensor initializer(const onnx::TensorProto& proto) {
    auto given = given_.external.find(proto.name);
    if (given != given_.external.end()) {
      require(proto.data_location == onnx::TensorProto::EXTERNAL, ErrorCode::kInvalidArgument,
              "a value was given for external data, but the model itself holds the data");
    } else {
      given = given_.any.find(proto.name);
      if (given == given_.any.end()) {
        Tensor read = read_tensor(proto, files_);
        if (for_session_ && proto.data_location == onnx::TensorProto::EXTERNAL)
          external_.emplace(proto.name, place_of(proto, read.bytes()));
        return read;
      }
    }
    const Tensor& value = given->second;
    const Shape shape(proto.dims.begin(), proto.dims.end());
    const auto dtype = static_cast<DType>(proto.data_type);
    require(value.dtype() == dtype && value.shape() == shape, ErrorCode::kInvalidArgument,
            "expected a value of type ", to_string(dtype), to_string(shape), ", as the model states, found ",
            to_string(value.dtype()), to_string(value.shape()));
    return value;
  }

  // Adds an operator set; `function` is null for those that the model itself imports.
  void import_opset(const std::string& domain_text, int64_t version, const onnx::FunctionProto* function) {
    const std::string domain = domain_name(checked_name(domain_text, "operator set domain"));
    require(version > 0, ErrorCode::kInvalidGraph, "the version of operator set ", shown_domain(domain),
            " should be positive, found ", version);
    const auto [found, fresh] = model_.opsets.emplace(domain, version);
    if (fresh || found->second == version) return;
    require(function != nullptr, ErrorCode::kInvalidGraph, "it imports operator set ", shown_domain(domain),
            " twice, with versions ", found->second, " and ", version);
    unsupported_.push_back(concat("function ", shown_domain(domain_name(function->domain)), ".",
                                  function->name, " uses version ", version, " of operator set ",
                                  shown_domain(domain), ", the model version ", found->second));
  }

  // Gradients and passes add ONNX operators to any model, so it imports their domain even if none of its
  // nodes needs it. Domains that contain only functions have no operators after these are inlined.
  void settle_domains() {
    model_.opsets.emplace("", kAddedOpset);
    for (const auto& function : proto_.functions)
      if (const std::string domain = domain_name(function.domain);
          !domain.empty() && used_domains_.count(domain) == 0)
        model_.opsets.erase(domain);
  }

  void report_unsupported() const {
    if (unsupported_.empty()) return;
    std::string all;
    for (const std::string& item : unsupported_) all += (all.empty() ? "" : "; ") + item;
    fail(ErrorCode::kNotImplemented, "it uses features that ortrain does not support: ", all);
  }

  // Runs `step` and collects what it finds unsupported, so that all of it can be reported at once.
  template <typename What, typename Step>
  void attempt(What&& what, Step&& step) {
    try {
      step();
    } catch (const Error& error) {
      std::string message = what() + ": " + error.message();
      if (error.code() != ErrorCode::kNotImplemented) throw Error(error.code(), std::move(message));
      unsupported_.push_back(std::move(message));
    }
  }

  void collect_names(const onnx::GraphProto& graph) {
    for (const auto& value : graph.input) taken_.insert(value.name);
    for (const auto& value : graph.output) taken_.insert(value.name);
    for (const auto& value : graph.value_info) taken_.insert(value.name);
    for (const auto& value : graph.initializer) taken_.insert(value.name);
    for (const auto& value : graph.sparse_initializer) taken_.insert(value.values->name);
    for (const auto& node : graph.node) {
      taken_.insert(node.name);
      taken_.insert(node.input.begin(), node.input.end());
      taken_.insert(node.output.begin(), node.output.end());
      for (const auto& attribute : node.attribute)
        if (attribute.g) collect_names(*attribute.g);
    }
  }

  std::string fresh_name(const std::string& base) {
    if (taken_.insert(base).second) return base;
    for (size_t& i = last_number_[base];;)
      if (std::string candidate = base + "_" + std::to_string(++i); taken_.insert(candidate).second)
        return candidate;
  }

  ValueInfo read_value(const onnx::ValueInfoProto& proto) {
    ValueInfo value;
    value.name = checked_name(proto.name, "value name");
    require(!value.name.empty(), ErrorCode::kInvalidGraph,
            "a graph input, output or intermediate value has no name");
    if (const std::optional<MapType> map = map_type(*proto.type); map && for_session_) {
      value.dtype = map->value;
      maps_.insert_or_assign(value.name, *map);
      return value;
    }
    if (proto.type->sparse_tensor_type && for_session_) {
      read_tensor_type(*proto.type->sparse_tensor_type, value);
      sparse_.insert(value.name);
      return value;
    }
    attempt([&] { return concat("value \"", value.name, "\""); }, [&] { read_type(*proto.type, value); });
    return value;
  }

  // Nothing if it is neither a map to numbers or strings, nor a sequence of such maps.
  static std::optional<MapType> map_type(const onnx::TypeProto& proto) {
    const bool in_sequence = static_cast<bool>(proto.sequence_type);
    const onnx::TypeProto& type = in_sequence ? *proto.sequence_type->elem_type : proto;
    if (!type.map_type || !type.map_type->value_type->tensor_type) return std::nullopt;
    return MapType{static_cast<DType>(type.map_type->key_type),
                   static_cast<DType>(type.map_type->value_type->tensor_type->elem_type.value_or(0)),
                   in_sequence};
  }

  static void read_type(const onnx::TypeProto& proto, ValueInfo& value) {
    const onnx::TypeProto* type = &proto;
    if (type->optional_type) {
      value.is_optional = true;
      type = &*type->optional_type->elem_type;
    }
    if (type->sequence_type) {
      value.is_sequence = true;
      type = &*type->sequence_type->elem_type;
    }
    if (!type->has_value()) return;  // no type is declared
    require(static_cast<bool>(type->tensor_type), ErrorCode::kNotImplemented,
            "it is neither a tensor, nor a sequence of tensors, nor an optional of either");
    read_tensor_type(*type->tensor_type, value);
  }

  // Reads the type of a tensor or of a sparse tensor.
  static void read_tensor_type(const onnx::TypeProto::Tensor& type, ValueInfo& value) {
    value.dtype = static_cast<DType>(type.elem_type.value_or(0));
    require(value.dtype == DType::kUndefined || bits_of(value.dtype) > 0, ErrorCode::kNotImplemented,
            "tensors of type ", to_string(value.dtype), " are not supported");
    if (!type.shape) return;
    value.dims.emplace();
    for (const auto& dim : type.shape->dim) {
      Dim declared;
      if (dim.dim_value && *dim.dim_value >= 0) declared.value = *dim.dim_value;
      // Paddle's exporter gives all free dimensions the name "?", even if their sizes differ.
      if (dim.dim_param && *dim.dim_param != "?")
        declared.symbol = checked_name(*dim.dim_param, "dimension name");
      value.dims->push_back(std::move(declared));
    }
  }

  // `names` is the scope around the graph.
  Graph read_graph(onnx::GraphProto& proto, const Names& around, const Call* call) {
    Graph graph;
    graph.name = checked_name(proto.name, "graph name");
    Names names{&around, around.rename, {}};
    if (names.rename) {
      for (const auto& input : proto.input) define(input.name, names);
      for (const auto& tensor : proto.initializer)
        if (names.renamed.count(tensor.name) == 0) define(tensor.name, names);
      for (const auto& tensor : proto.sparse_initializer)
        if (names.renamed.count(tensor.values->name) == 0) define(tensor.values->name, names);
      for (const auto& node : proto.node) define_outputs(node, names);
    }
    const auto named = [&](const std::string& name) {
      const std::string* found = names.find(name);
      return found != nullptr ? *found : name;
    };

    for (const auto& tensor : proto.sparse_initializer) {
      const std::string& name = checked_name(tensor.values->name, "initializer name");
      require(!name.empty(), ErrorCode::kInvalidGraph, "a sparse initializer has no name");
      attempt([&] { return concat("initializer \"", name, "\""); },
              [&] { graph.add_initializer(named(name), read_sparse_tensor(tensor, files_)); });
    }
    for (auto& tensor : proto.initializer) {
      const std::string& name = checked_name(tensor.name, "initializer name");
      require(!name.empty(), ErrorCode::kInvalidGraph, "an initializer has no name");
      attempt([&] { return concat("initializer \"", name, "\""); },
              [&] { graph.add_initializer(named(name), initializer(tensor)); });
      tensor = {};  // its data were copied
    }
    std::unordered_set<std::string> seen;
    for (const auto& input : proto.input) {
      ValueInfo value = read_value(input);
      require(seen.insert(value.name).second, ErrorCode::kInvalidGraph, "two graph inputs are named \"",
              value.name, "\"");
      value.name = named(value.name);
      // Up to IR version 3 initializers are listed among the inputs; later, such an input has a default
      // value.
      if (!graph.is_initializer(value.name)) graph.inputs.push_back(std::move(value));
    }
    for (const auto& output : proto.output) {  // one value may appear more than once
      ValueInfo value = read_value(output);
      value.name = named(value.name);
      require(!value.name.empty(), ErrorCode::kInvalidGraph, "graph output \"", output.name,
              "\" is an input of the function that its caller does not pass");
      graph.outputs.push_back(std::move(value));
    }
    for (const auto& inner : proto.value_info) {
      ValueInfo value = read_value(inner);
      value.name = named(value.name);
      if (value.name.empty()) continue;  // an input of the function that its caller does not give
      std::string name = value.name;
      graph.value_info.insert_or_assign(std::move(name), std::move(value));
    }
    for (auto& node : proto.node) read_node(node, names, call, graph.nodes);
    return graph;
  }

  void define(const std::string& name, Names& names) {
    if (name.empty()) return;
    const std::string base = prefix_ + checked_name(name, "value name");
    require(names.renamed.emplace(name, fresh_name(base)).second, ErrorCode::kInvalidGraph, "value \"", name,
            "\" is produced twice");
  }

  void define_outputs(const onnx::NodeProto& node, Names& names) {
    for (const std::string& output : node.output) define(output, names);
  }

  void read_node(onnx::NodeProto& proto, const Names& names, const Call* call, std::vector<Node>& nodes) {
    Node node;
    node.domain = domain_name(checked_name(proto.domain, "node domain"));
    node.op_type = checked_name(proto.op_type, "operator name");
    node.name = checked_name(proto.name, "node name");
    for (const std::string& input : proto.input) {
      const std::string* name = input.empty() ? &input : names.find(checked_name(input, "value name"));
      require(name != nullptr, ErrorCode::kInvalidGraph, "node \"", node.name, "\" (", node.op_type,
              ") reads \"", input, "\", which the function does not define");
      node.inputs.push_back(*name);
    }
    for (const std::string& output : proto.output) {
      const std::string* name = output.empty() ? &output : names.find(checked_name(output, "value name"));
      node.outputs.push_back(name != nullptr ? *name : output);
    }
    if (call != nullptr && !node.name.empty()) node.name = fresh_name(prefix_ + node.name);
    const Lazy label{[&] { return node.label(); }};
    require(!node.op_type.empty(), ErrorCode::kInvalidGraph, label, " does not name its operator");
    for (auto& attribute : proto.attribute) read_attribute(attribute, names, call, node);

    require(call == nullptr || ++inlined_ <= kMaxInlined, ErrorCode::kInvalidGraph,
            "inlining its functions would create more than ", kMaxInlined, " nodes");
    const auto function = functions_.find(function_key(proto.domain, proto.op_type, proto.overload));
    if (function != functions_.end()) {
      inline_function(*function->second, std::move(node), call, nodes);
      return;
    }
    if (!node.domain.empty()) model_.opsets.emplace(node.domain, kUnstatedOpset);
    require(model_.opsets.count(node.domain) > 0, ErrorCode::kInvalidGraph, label, " is of operator set ",
            shown_domain(node.domain), ", which the model does not import");
    used_domains_.insert(node.domain);
    require(++nodes_ <= limits_.nodes, ErrorCode::kInvalidGraph, "it has more than ",
            counted(limits_.nodes, "node"), ", the maximum that session.max_nodes allows");
    nodes.push_back(std::move(node));
  }

  void read_attribute(onnx::AttributeProto& proto, const Names& names, const Call* call, Node& node) {
    const std::string& name = checked_name(proto.name, "attribute name");
    const Lazy label{[&] { return node.label(); }};
    require(!name.empty(), ErrorCode::kInvalidGraph, label, " has an attribute without a name");
    require(!node.has(name), ErrorCode::kInvalidGraph, label, " has two attributes \"", name, "\"");
    attempt([&] { return concat(label, ", attribute \"", name, "\""); },
            [&] {
              if (proto.ref_attr_name.empty()) {
                // A sparse constant becomes a dense one.
                const bool sparse = proto.type == onnx::AttributeProto::SPARSE_TENSOR;
                node.attributes.emplace(sparse && name == "sparse_value" ? "value" : name,
                                        attribute_value(proto, names, call));
                return;
              }
              require(call != nullptr, ErrorCode::kInvalidGraph, "it refers to the attribute \"",
                      proto.ref_attr_name, "\" of a function, but is not inside a function");
              const auto given = call->attributes.find(proto.ref_attr_name);
              if (given == call->attributes.end()) return;  // omitted by the caller, so omitted here
              if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&given->second))
                node.attributes.emplace(name, std::make_shared<Graph>(**graph));
              else
                node.attributes.emplace(name, given->second);
            });
  }

  Attribute attribute_value(onnx::AttributeProto& proto, const Names& names, const Call* call) {
    using Type = onnx::AttributeProto;
    switch (attribute_type(proto)) {
      case Type::INT:
        return proto.i.value_or(0);
      case Type::FLOAT:
        return proto.f.value_or(0);
      case Type::STRING:
        return text_of(proto.s);
      case Type::INTS:
        return proto.ints;
      case Type::FLOATS:
        return proto.floats;
      case Type::STRINGS:
        return proto.strings;
      case Type::TENSOR:
        require(static_cast<bool>(proto.t), ErrorCode::kInvalidGraph, "the tensor is missing");
        return read_tensor(*proto.t, files_);
      case Type::SPARSE_TENSOR:
        require(static_cast<bool>(proto.sparse_tensor), ErrorCode::kInvalidGraph,
                "the sparse tensor is missing");
        return read_sparse_tensor(*proto.sparse_tensor, files_);
      case Type::GRAPH:
        require(static_cast<bool>(proto.g), ErrorCode::kInvalidGraph, "the graph is missing");
        return read_subgraph(proto.g.make(), names, call);
      case Type::TYPE_PROTO: {
        ValueInfo type;
        read_type(*proto.tp, type);
        return type;
      }
      case Type::UNDEFINED:
        fail(ErrorCode::kInvalidGraph, "it has no value");
      default:
        break;
    }
    fail(ErrorCode::kNotImplemented, "attributes of kind ", name_of(proto.type), " are not supported");
  }

  std::shared_ptr<Graph> read_subgraph(onnx::GraphProto& proto, const Names& names, const Call* call) {
    require(++nesting_ <= limits_.nesting, ErrorCode::kInvalidGraph, "its subgraphs are nested more than ",
            limits_.nesting, " deep, the maximum that session.max_nesting allows");
    std::shared_ptr<Graph> graph;
    if (call != nullptr) {  // a function's graphs are read once per call, so reading must not consume them
      onnx::GraphProto copy = proto;
      graph = std::make_shared<Graph>(read_graph(copy, names, call));
    } else {
      graph = std::make_shared<Graph>(read_graph(proto, names, call));
    }
    --nesting_;
    return graph;
  }

  // The declared type; models of the first IR versions do not declare it.
  static onnx::AttributeProto::AttributeType attribute_type(const onnx::AttributeProto& proto) {
    using Type = onnx::AttributeProto;
    if (proto.type != Type::UNDEFINED) return proto.type;
    if (proto.i) return Type::INT;
    if (proto.f) return Type::FLOAT;
    if (proto.s) return Type::STRING;
    if (proto.t) return Type::TENSOR;
    if (proto.g) return Type::GRAPH;
    if (proto.tp) return Type::TYPE_PROTO;
    if (!proto.ints.empty()) return Type::INTS;
    if (!proto.floats.empty()) return Type::FLOATS;
    if (!proto.strings.empty()) return Type::STRINGS;
    return Type::UNDEFINED;
  }

  // Checks the attributes that the caller gives, and adds the defaults of the others.
  template <typename Title>
  void add_defaults(Call& call, const Title& title) {
    const onnx::FunctionProto& function = *call.function;
    for (const auto& given : call.attributes) {
      const std::string& name = given.first;
      const bool stated =
          std::find(function.attribute.begin(), function.attribute.end(), name) != function.attribute.end() ||
          std::any_of(function.attribute_proto.begin(), function.attribute_proto.end(),
                      [&](const auto& attribute) { return attribute.name == name; });
      require(stated, ErrorCode::kInvalidGraph, title, ": it has no attribute \"", name, "\"");
    }
    for (const auto& attribute : function.attribute_proto)
      if (call.attributes.count(attribute.name) == 0) {
        onnx::AttributeProto copy = attribute;
        attempt(
            [&] { return concat(title, ", default of attribute \"", attribute.name, "\""); },
            // within the call: a graph may call functions, even this one, which is then found and rejected
            [&] { call.attributes.emplace(attribute.name, attribute_value(copy, Names{}, &call)); });
      }
  }

  // Replaces a call by the function's body.
  void inline_function(const onnx::FunctionProto& function, Node caller, const Call* from,
                       std::vector<Node>& nodes) {
    const Lazy title{[&] {
      return concat("function ", shown_domain(domain_name(function.domain)), ".", function.name,
                    ", called by ", caller.label());
    }};
    int depth = 1;
    for (const Call* up = from; up != nullptr; up = up->caller, ++depth)
      require(up->function != &function, ErrorCode::kInvalidGraph, title, ": the function calls itself");
    require(depth <= kMaxFunctionDepth, ErrorCode::kInvalidGraph, title, ": functions are nested more than ",
            kMaxFunctionDepth, " deep");
    require(caller.inputs.size() <= function.input.size() && caller.outputs.size() <= function.output.size(),
            ErrorCode::kInvalidGraph, title, ": it takes up to ", counted(function.input.size(), "input"),
            " and returns up to ", counted(function.output.size(), "output"), ", found ",
            caller.inputs.size(), " and ", caller.outputs.size());
    for (const auto& opset : function.opset_import)
      import_opset(text_of(opset.domain), opset.version, &function);

    Call call{&function, std::move(caller.attributes), from};
    add_defaults(call, title);

    const std::string prefix_before = prefix_;
    prefix_ = (caller.name.empty() ? function.name : caller.name) + "/";
    Names names{nullptr, true, {}};
    std::unordered_set<std::string> formals(function.input.begin(), function.input.end());
    for (size_t i = 0; i < function.input.size(); ++i)
      names.renamed[function.input[i]] = caller.has_input(i) ? caller.inputs[i] : "";
    // A body's outputs get the caller's names. An output that is also an input needs a node in between.
    std::vector<std::pair<std::string, std::string>> passed_through;
    for (size_t i = 0; i < function.output.size(); ++i) {
      const std::string& output = function.output[i];
      if (!caller.has_output(i)) continue;
      if (formals.count(output) > 0)
        passed_through.emplace_back(names.renamed[output], caller.outputs[i]);
      else
        require(names.renamed.emplace(output, caller.outputs[i]).second, ErrorCode::kInvalidGraph, title,
                ": two of its outputs are named \"", output, "\"");
    }
    try {
      std::unordered_set<std::string> made;
      for (const auto& node : function.node)
        for (const std::string& output : node.output) {
          if (output.empty()) continue;
          require(made.insert(output).second && formals.count(output) == 0, ErrorCode::kInvalidGraph,
                  "value \"", output, "\" is produced twice");
          if (names.renamed.count(output) == 0) define(output, names);
        }
      for (const std::string& output : function.output)
        require(made.count(output) > 0 || formals.count(output) > 0, ErrorCode::kInvalidGraph,
                "no node of the function produces its output \"", output, "\"");
      for (const auto& node : function.node) {
        onnx::NodeProto copy = node;
        read_node(copy, names, &call, nodes);
      }
    } catch (const Error& error) {
      fail(error.code(), title, ": ", error.message());
    }
    for (const auto& [from_name, to_name] : passed_through) {
      require(!from_name.empty() && model_.opsets.count("") > 0, ErrorCode::kInvalidGraph, title,
              ": it passes an input through as an output, but ",
              from_name.empty() ? "the caller omits that input"
                                : "the model does not import the ONNX operator set");
      Node identity;
      identity.op_type = "Identity";
      identity.name = fresh_name(prefix_ + "Identity");
      identity.inputs = {from_name};
      identity.outputs = {to_name};
      nodes.push_back(std::move(identity));
    }
    prefix_ = prefix_before;
  }

  onnx::ModelProto& proto_;
  ExternalFiles files_;
  const GivenInitializers& given_;  // instead of initializers of the model
  const ModelLimits limits_;
  const bool for_session_;  // which takes maps and sparse tensors
  std::map<std::string, MapType> maps_;
  std::set<std::string> sparse_;
  std::map<std::string, ExternalPlace> external_;
  Model model_;
  std::unordered_map<std::string, const onnx::FunctionProto*> functions_;
  std::unordered_set<std::string> taken_;  // names in use; kept only where functions are inlined
  std::unordered_map<std::string, size_t> last_number_;
  std::string prefix_;  // for names in the function being inlined
  std::set<std::string> used_domains_;
  std::vector<std::string> unsupported_;
  size_t inlined_ = 0;  // nodes and calls from functions
  size_t nodes_ = 0;    // read so far
  size_t nesting_ = 0;  // subgraphs around the one being read
};

}  // namespace

Model convert_model(onnx::ModelProto& proto, const std::filesystem::path& folder,
                    const ReadOptions& options) {
  Reader reader(proto, folder, options);
  Model model = reader.read();
  if (options.notes != nullptr) *options.notes = reader.notes(model.graph);
  return model;
}

}  // namespace ortrain
