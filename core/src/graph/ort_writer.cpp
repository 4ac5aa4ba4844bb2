#include "graph/ort_writer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ort_model_generated.h"
#include "runtime/error.h"
#include "runtime/text_tensor.h"

namespace ortrain {

namespace {

using flatbuffers::Offset;
using flatbuffers::String;

// Numbers of ONNX AttributeProto.AttributeType, in the order of Attribute.
constexpr int32_t kKinds[] = {2, 1, 3, 4, 7, 6, 8, 5, 13};
static_assert(std::size(kKinds) == std::variant_size_v<Attribute>);

constexpr size_t kLargest = (size_t{1} << 31) - (size_t{1} << 20);

// The values that the subgraphs of a node read from the graphs around it, each value once.
std::vector<std::string> implicit_inputs(const Node& node) {
  std::vector<std::string> read = values_read(node);
  const auto own = std::count_if(node.inputs.begin(), node.inputs.end(),
                                 [](const std::string& name) { return !name.empty(); });
  read.erase(read.begin(), read.begin() + own);
  std::unordered_set<std::string> seen;
  std::erase_if(read, [&](const std::string& name) { return !seen.insert(name).second; });
  return read;
}

class OrtWriter {
 public:
  OrtWriter(const Model& model, const OrtFacts& facts) : model_(model), facts_(facts) {}

  std::string write() {
    const Offset<ort::Graph> graph = write_graph(model_.graph);
    std::vector<Offset<ort::OperatorSetId>> opsets;
    std::map<std::string, int64_t> imported = model_.opsets;
    // onnxruntime rewrites models with operators of this domain when it reads them.
    imported.emplace("com.microsoft", 1);
    for (const auto& [domain, version] : imported)
      opsets.push_back(ort::CreateOperatorSetId(builder_, text(domain), version));
    std::vector<Offset<ort::StringStringEntry>> metadata;
    for (const auto& [key, value] : model_.metadata)
      metadata.push_back(ort::CreateStringStringEntry(builder_, text(key), text(value)));
    const Offset<ort::Model> model = ort::CreateModel(
        builder_, model_.ir_version, list(opsets), text(model_.producer_name), text(model_.producer_version),
        text(model_.domain), model_.model_version, text(model_.doc_string), graph, text(""), list(metadata));
    const Offset<ort::KernelTypeStrResolver> resolver = write_type_parameters();
    builder_.Finish(ort::CreateInferenceSession(builder_, text(all_known_ ? "6" : "4"), model, resolver),
                    ort::InferenceSessionIdentifier());
    return std::string(reinterpret_cast<const char*>(builder_.GetBufferPointer()), builder_.GetSize());
  }

 private:
  Offset<String> text(std::string_view value) {
    return builder_.CreateSharedString(value.data(), value.size());
  }

  Offset<flatbuffers::Vector<Offset<String>>> texts(const std::vector<std::string>& values) {
    std::vector<Offset<String>> offsets;
    for (const std::string& value : values) offsets.push_back(text(value));
    return builder_.CreateVector(offsets);
  }

  template <typename T>
  Offset<flatbuffers::Vector<T>> list(const std::vector<T>& items) {
    return builder_.CreateVector(items);
  }

  Offset<ort::TypeInfo> tensor_type(const ValueInfo& value) {
    Offset<ort::Shape> shape;
    if (value.dims) {
      std::vector<Offset<ort::Dimension>> dims;
      for (const Dim& dim : *value.dims) {
        const int8_t kind = dim.known() ? 1 : dim.symbol.empty() ? 0 : 2;
        const auto number = ort::CreateDimensionValue(builder_, kind, dim.known() ? dim.value : 0,
                                                      kind == 2 ? text(dim.symbol) : Offset<String>());
        dims.push_back(ort::CreateDimension(builder_, number));
      }
      shape = ort::CreateShape(builder_, list(dims));
    }
    const auto tensor =
        ort::CreateTensorTypeAndShape(builder_, static_cast<int32_t>(value.dtype), shape).Union();
    return ort::CreateTypeInfo(builder_, 0, ort::TypeInfoValue_tensor_type, tensor);
  }

  Offset<ort::ValueInfo> value_info(const std::string& name, const ValueInfo& value) {
    require(!value.is_optional, ErrorCode::kNotImplemented, "the value \"", name,
            "\" is optional, which models in ORT format cannot have");
    Offset<ort::TypeInfo> type;
    if (value.dtype != DType::kUndefined) {
      type = tensor_type(value);
      if (value.is_sequence)
        type = ort::CreateTypeInfo(builder_, 0, ort::TypeInfoValue_sequence_type,
                                   ort::CreateSequenceType(builder_, type).Union());
    }
    return ort::CreateValueInfo(builder_, text(name), 0, type);
  }

  Offset<ort::Tensor> write_tensor(const Tensor& tensor, const std::string& name) {
    const size_t bytes = tensor.dtype() == DType::kString ? 0 : tensor.bytes();
    require(bytes < kLargest && builder_.GetSize() < kLargest - bytes, ErrorCode::kFail,
            "it would take more than the 2 GB that a file in ORT format can hold");
    const auto dims = builder_.CreateVector(tensor.shape().data(), tensor.shape().size());
    const auto dtype = static_cast<int32_t>(tensor.dtype());
    if (tensor.dtype() == DType::kString) {
      std::vector<std::string> elements;
      for (int64_t i = 0; i < tensor.size(); ++i) elements.push_back(ortrain::text(text_places(tensor)[i]));
      return ort::CreateTensor(builder_, text(name), 0, dims, dtype, 0, texts(elements));
    }
    const auto data = builder_.CreateVector(reinterpret_cast<const uint8_t*>(tensor.raw()), bytes);
    return ort::CreateTensor(builder_, text(name), 0, dims, dtype, data);
  }

  Offset<ort::Attribute> write_attribute(const std::string& name, const Attribute& attribute,
                                         const Node& node) {
    const int32_t kind = kKinds[attribute.index()];
    if (const auto* f = std::get_if<float>(&attribute))
      return ort::CreateAttribute(builder_, text(name), 0, kind, *f);
    if (const auto* i = std::get_if<int64_t>(&attribute))
      return ort::CreateAttribute(builder_, text(name), 0, kind, 0, *i);
    const Offset<String> title = text(name);
    Offset<String> s;
    Offset<ort::Tensor> t;
    Offset<ort::Graph> g;
    Offset<flatbuffers::Vector<float>> floats;
    Offset<flatbuffers::Vector<int64_t>> ints;
    Offset<flatbuffers::Vector<Offset<String>>> strings;
    if (const auto* value = std::get_if<std::string>(&attribute)) s = text(*value);
    if (const auto* value = std::get_if<Tensor>(&attribute)) t = write_tensor(*value, "");
    if (const auto* value = std::get_if<std::vector<float>>(&attribute)) floats = list(*value);
    if (const auto* value = std::get_if<std::vector<int64_t>>(&attribute)) ints = list(*value);
    if (const auto* value = std::get_if<std::vector<std::string>>(&attribute)) strings = texts(*value);
    if (const auto* value = std::get_if<std::shared_ptr<Graph>>(&attribute)) g = write_graph(**value);
    require(!std::holds_alternative<ValueInfo>(attribute), ErrorCode::kNotImplemented, node.label(),
            ": the attribute \"", name, "\" is a type, which models in ORT format cannot have");
    return ort::CreateAttribute(builder_, title, 0, kind, 0, 0, s, t, g, floats, ints, strings);
  }

  Offset<ort::Node> write_node(const Node& node, size_t index) {
    OrtOperator known = facts_.operator_of(node, model_.opset(node.domain));
    if (known.types)
      parameters_.emplace(concat(node.domain, ":", node.op_type, ":", known.since), std::move(*known.types));
    else
      all_known_ = false;
    std::vector<Offset<ort::Attribute>> attributes;
    for (const auto& [name, attribute] : node.attributes)
      attributes.push_back(write_attribute(name, attribute, node));
    return ort::CreateNode(builder_, text(node.name), 0, text(node.domain), static_cast<int32_t>(known.since),
                           static_cast<uint32_t>(index), text(node.op_type), 0, text(""), texts(node.inputs),
                           texts(node.outputs), list(attributes), list(known.inputs),
                           texts(implicit_inputs(node)));
  }

  std::vector<Offset<ort::NodeEdge>> write_edges(const std::vector<const Node*>& nodes) {
    struct Ends {
      std::vector<ort::EdgeEnd> in, out;
    };
    std::vector<Ends> ends(nodes.size());
    std::unordered_map<std::string, std::pair<size_t, int32_t>> makers;
    for (size_t i = 0; i < nodes.size(); ++i)
      for (size_t o = 0; o < nodes[i]->outputs.size(); ++o)
        makers.emplace(nodes[i]->outputs[o], std::pair(i, static_cast<int32_t>(o)));
    makers.erase("");
    for (size_t i = 0; i < nodes.size(); ++i) {
      std::vector<std::string> read = nodes[i]->inputs;
      for (std::string& name : implicit_inputs(*nodes[i])) read.push_back(std::move(name));
      for (size_t k = 0; k < read.size(); ++k) {
        const auto maker = makers.find(read[k]);
        if (maker == makers.end()) continue;
        const auto [from, o] = maker->second;
        ends[from].out.emplace_back(static_cast<uint32_t>(i), o, static_cast<int32_t>(k));
        ends[i].in.emplace_back(static_cast<uint32_t>(from), o, static_cast<int32_t>(k));
      }
    }
    std::vector<Offset<ort::NodeEdge>> edges;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto in = builder_.CreateVectorOfStructs(ends[i].in);
      const auto out = builder_.CreateVectorOfStructs(ends[i].out);
      edges.push_back(ort::CreateNodeEdge(builder_, static_cast<uint32_t>(i), in, out));
    }
    return edges;
  }

  // All values of the graph with their known types, also values of outer graphs that it reads.
  std::vector<Offset<ort::ValueInfo>> write_values(const Graph& graph) {
    const std::map<std::string, ValueInfo> values(graph.value_info.begin(), graph.value_info.end());
    std::vector<Offset<ort::ValueInfo>> infos;
    for (const auto& [name, value] : values) infos.push_back(value_info(name, value));
    return infos;
  }

  Offset<ort::Graph> write_graph(const Graph& graph) {
    std::vector<Offset<ort::Tensor>> initializers;
    for (const std::string& name : graph.initializer_order)
      initializers.push_back(write_tensor(graph.initializers.at(name), name));
    std::vector<const Node*> nodes;
    for (const Node& node : graph.nodes) nodes.push_back(&node);
    std::vector<Offset<ort::Node>> written;
    for (size_t i = 0; i < nodes.size(); ++i) written.push_back(write_node(*nodes[i], i));
    const std::vector<Offset<ort::NodeEdge>> edges = write_edges(nodes);
    const std::vector<Offset<ort::ValueInfo>> values = write_values(graph);
    const auto names = [](const std::vector<ValueInfo>& infos) {
      std::vector<std::string> all;
      for (const ValueInfo& info : infos) all.push_back(info.name);
      return all;
    };
    return ort::CreateGraph(builder_, list(initializers), list(values), list(written),
                            static_cast<uint32_t>(nodes.size()), list(edges), texts(names(graph.inputs)),
                            texts(names(graph.outputs)));
  }

  // Which inputs and outputs share a type, for every operator. Nothing if that is not known for one of the
  // operators.
  Offset<ort::KernelTypeStrResolver> write_type_parameters() {
    if (!all_known_) return {};
    std::vector<Offset<ort::OpIdKernelTypeStrArgsEntry>> operators;
    for (const auto& [id, types] : parameters_) {
      std::vector<Offset<ort::KernelTypeStrArgsEntry>> entries;
      for (const OnnxTypeParameter& parameter : types) {
        std::vector<Offset<ort::ArgTypeAndIndex>> places;
        for (const auto& [is_output, index] : parameter.places)
          places.push_back(ort::CreateArgTypeAndIndex(builder_, is_output ? 1 : 0, index));
        const auto name = text(parameter.name);
        entries.push_back(ort::CreateKernelTypeStrArgsEntry(builder_, name, list(places)));
      }
      const auto name = text(id);
      operators.push_back(ort::CreateOpIdKernelTypeStrArgsEntry(builder_, name, list(entries)));
    }
    return ort::CreateKernelTypeStrResolver(builder_, list(operators));
  }

  const Model& model_;  // with types
  const OrtFacts& facts_;
  flatbuffers::FlatBufferBuilder builder_;
  std::map<std::string, std::vector<OnnxTypeParameter>> parameters_;  // by operator, as readers search them
  bool all_known_ = true;
};

}  // namespace

std::string write_ort_model(const Model& model, const OrtFacts& facts) {
  try {
    std::set<std::string> problems;
    const Model typed = facts.with_types(model, problems);
    std::string content = OrtWriter(typed, facts).write();
    std::string message;
    for (const std::string& problem : problems) message += "\n  " + problem;
    require(message.empty(), ErrorCode::kInvalidGraph, "it has nodes with invalid inputs:", message);
    return content;
  } catch (const Error& error) {
    fail(error.code(), "cannot write the model in ORT format: ", error.message());
  }
}

}  // namespace ortrain
