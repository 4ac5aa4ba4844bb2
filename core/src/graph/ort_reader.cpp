#include "graph/ort_reader.h"

#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "graph/onnx_io.h"
#include "ort_model_generated.h"
#include "runtime/error.h"
#include "runtime/flatbuffer_list.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

template <typename T>
using Tables = flatbuffers::Vector<flatbuffers::Offset<T>>;
using Strings = Tables<flatbuffers::String>;

// A graph in an attribute of a node adds three tables.
constexpr size_t kDepth = 3 * ModelLimits{}.nesting + 64;
constexpr size_t kSmallest = 12;  // root offset, identifier, one table

class OrtReader {
 public:
  // Tables are never shared, so there is room for no more than that. Data and texts may be shared; the limits
  // keep a small file from becoming a large model.
  explicit OrtReader(size_t bytes) : data_left_(bytes), text_left_(uint64_t{64} * bytes + (1 << 20)) {}

  onnx::ModelProto read(const ort::InferenceSession& root) {
    check_version(root.ort_version());
    require(root.model() != nullptr && root.model()->graph() != nullptr, ErrorCode::kFail,
            "it is in ORT format, but holds no graph");
    const ort::Model& model = *root.model();
    onnx::ModelProto proto;
    proto.ir_version = model.ir_version();
    for_each(model.opset_import(), [&](const ort::OperatorSetId* from) {
      auto& opset = proto.opset_import.emplace_back();
      opset.domain = text(from->domain());
      opset.version = from->version();
    });
    proto.producer_name = text(model.producer_name());
    proto.producer_version = text(model.producer_version());
    proto.domain = text(model.domain());
    proto.model_version = model.model_version();
    proto.doc_string = text(model.doc_string());
    for_each(model.metadata_props(), [&](const ort::StringStringEntry* from) {
      auto& entry = proto.metadata_props.emplace_back();
      entry.key = text(from->key());
      entry.value = text(from->value());
    });
    read_graph(*model.graph(), proto.graph.make());
    proto.graph.make().doc_string = text(model.graph_doc_string());
    return proto;
  }

 private:
  static void check_version(const flatbuffers::String* stated) {
    require(stated != nullptr, ErrorCode::kFail, "it is in ORT format, but does not state the version");
    const std::string version = stated->str();
    int number = 0;
    const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), number);
    require(error == std::errc{} && end == version.data() + version.size() && number >= kOldestOrtVersion,
            ErrorCode::kFail, "the version of its ORT format should be a number from ", kOldestOrtVersion,
            " to ", kNewestOrtVersion, ", found \"", printable(version), "\"");
    require(number <= kNewestOrtVersion, ErrorCode::kNotImplemented, "it is in version ", number,
            " of the ORT format; versions up to ", kNewestOrtVersion, " are supported");
  }

  static std::string printable(const std::string& text) {
    std::string shown;
    for (const char c : text.substr(0, 32)) shown += c >= 0x20 && c < 0x7F ? c : '?';
    return shown;
  }

  // The text, or "" if it is missing.
  std::string text(const flatbuffers::String* from) {
    if (from == nullptr) return "";
    require(from->size() <= text_left_, ErrorCode::kFail,
            "its names and texts are longer than a file of that size can hold");
    text_left_ -= from->size();
    return from->str();
  }

  void read_type(const ort::TypeInfo* from, onnx::TypeProto& type) {
    if (from == nullptr) return;
    if (const auto* tensor = from->value_as_tensor_type()) {
      onnx::TypeProto::Tensor& to = type.tensor_type.make();
      to.elem_type = tensor->elem_type();
      if (tensor->shape() == nullptr) return;
      onnx::TensorShapeProto& shape = to.shape.make();
      for_each(tensor->shape()->dim(),
               [&](const ort::Dimension* dim) { read_dim(*dim, shape.dim.emplace_back()); });
    } else if (const auto* sequence = from->value_as_sequence_type()) {
      read_type(sequence->elem_type(), type.sequence_type.make().elem_type.make());
    } else if (const auto* map = from->value_as_map_type()) {
      type.map_type.make().key_type = map->key_type();
      read_type(map->value_type(), type.map_type.make().value_type.make());
    }
  }

  void read_dim(const ort::Dimension& from, onnx::TensorShapeProto::Dimension& dim) {
    constexpr int8_t kNumber = 1, kName = 2;
    if (from.denotation() != nullptr) dim.denotation = text(from.denotation());
    if (from.value() == nullptr) return;
    if (from.value()->dim_type() == kNumber) dim.dim_value = from.value()->dim_value();
    if (from.value()->dim_type() == kName) dim.dim_param = text(from.value()->dim_param());
  }

  void read_tensor(const ort::Tensor& from, onnx::TensorProto& tensor) {
    tensor.name = text(from.name());
    tensor.data_type = from.data_type();
    for_each(from.dims(), [&](int64_t size) { tensor.dims.push_back(size); });
    require(from.external_data_offset() < 0, ErrorCode::kNotImplemented, "the tensor \"", tensor.name,
            "\" is stored outside the file, which models in ORT format cannot have");
    if (static_cast<DType>(from.data_type()) == DType::kString) {
      for_each(from.string_data(),
               [&](const flatbuffers::String* s) { tensor.string_data.push_back(text(s)); });
      return;
    }
    const flatbuffers::Vector<uint8_t>* data = from.raw_data();
    const size_t bytes = data == nullptr ? 0 : data->size();
    require(bytes <= data_left_, ErrorCode::kFail, "its tensors have more bytes than the file");
    data_left_ -= bytes;
    if (data != nullptr) tensor.raw_data.emplace(reinterpret_cast<const char*>(data->data()), bytes);
  }

  static const ort::Tensor& part(const ort::Tensor* tensor) {
    require(tensor != nullptr, ErrorCode::kFail, "a sparse tensor lacks its values or indices");
    return *tensor;
  }

  void read_attribute(const ort::Attribute& from, onnx::AttributeProto& attribute) {
    using Type = onnx::AttributeProto;
    attribute.name = text(from.name());
    if (!is_known(static_cast<Type::AttributeType>(from.type())))
      fail(ErrorCode::kFail, "the attribute \"", attribute.name, "\" is of an unknown kind, ", from.type());
    attribute.type = static_cast<Type::AttributeType>(from.type());
    switch (attribute.type) {
      case Type::FLOAT:
        attribute.f = from.f();
        return;
      case Type::INT:
        attribute.i = from.i();
        return;
      case Type::STRING:
        attribute.s = text(from.s());
        return;
      case Type::TENSOR:
        if (from.t() != nullptr) read_tensor(*from.t(), attribute.t.make());
        return;
      case Type::GRAPH:
        if (from.g() != nullptr) read_graph(*from.g(), attribute.g.make());
        return;
      case Type::FLOATS:
        return for_each(from.floats(), [&](float item) { attribute.floats.push_back(item); });
      case Type::INTS:
        return for_each(from.ints(), [&](int64_t item) { attribute.ints.push_back(item); });
      case Type::STRINGS:
        return for_each(from.strings(), [&](const auto* item) { attribute.strings.push_back(text(item)); });
      default:  // a kind that no operator here has: the reader of the message rejects it
        return;
    }
  }

  void read_node(const ort::Node& from, onnx::NodeProto& node) {
    node.name = text(from.name());
    node.domain = text(from.domain());
    node.op_type = text(from.op_type());
    for_each(from.inputs(), [&](const auto* name) { node.input.push_back(text(name)); });
    for_each(from.outputs(), [&](const auto* name) { node.output.push_back(text(name)); });
    for_each(from.attributes(),
             [&](const ort::Attribute* item) { read_attribute(*item, node.attribute.emplace_back()); });
  }

  void read_graph(const ort::Graph& from, onnx::GraphProto& graph) {
    for_each(from.initializers(),
             [&](const ort::Tensor* item) { read_tensor(*item, graph.initializer.emplace_back()); });
    for_each(from.sparse_initializers(), [&](const ort::SparseTensor* item) {
      onnx::SparseTensorProto& sparse = graph.sparse_initializer.emplace_back();
      read_tensor(part(item->values()), sparse.values.make());
      read_tensor(part(item->indices()), sparse.indices.make());
      for_each(item->dims(), [&](int64_t size) { sparse.dims.push_back(size); });
    });
    std::unordered_map<std::string, const ort::TypeInfo*> types;
    for_each(from.node_args(), [&](const ort::ValueInfo* item) {
      if (item->name() != nullptr) types.emplace(text(item->name()), item->type());
    });
    // The list also has values of the graphs around this one, which those graphs state.
    std::unordered_set<std::string> stated;
    const auto state = [&](const std::string& name, onnx::ValueInfoProto& value) {
      value.name = name;
      stated.insert(name);
      if (const auto type = types.find(name); type != types.end() && type->second != nullptr)
        read_type(type->second, value.type.make());
    };
    for_each(from.inputs(), [&](const auto* name) { state(text(name), graph.input.emplace_back()); });
    for_each(from.outputs(), [&](const auto* name) { state(text(name), graph.output.emplace_back()); });
    for_each(from.nodes(), [&](const ort::Node* item) {
      read_node(*item, graph.node.emplace_back());
      for (const std::string& name : graph.node.back().output)
        if (!name.empty() && stated.count(name) == 0 && types.count(name) > 0)
          state(name, graph.value_info.emplace_back());
    });
  }

  size_t data_left_;
  uint64_t text_left_;
};

}  // namespace

bool is_ort_model(const void* data, size_t bytes) {
  return bytes >= kSmallest && ort::InferenceSessionBufferHasIdentifier(data);
}

onnx::ModelProto parse_ort_model(const void* data, size_t bytes) {
  if (!is_ort_model(data, bytes))
    fail(ErrorCode::kFail, "expected a model in ORT format (identifier ORTM), found ",
         describe_content(data, bytes));
  require(bytes < FLATBUFFERS_MAX_BUFFER_SIZE, ErrorCode::kFail, "it has ", counted(bytes, "byte"),
          ", more than a file in ORT format can have (2 GB)");
  // Numbers are read in place, so the data must be at an aligned address.
  std::shared_ptr<uint64_t[]> copy;
  const auto* begin = static_cast<const uint8_t*>(data);
  if (reinterpret_cast<uintptr_t>(begin) % sizeof(uint64_t) != 0) {
    copy.reset(new uint64_t[bytes / sizeof(uint64_t) + 1]);
    begin = static_cast<const uint8_t*>(std::memcpy(copy.get(), data, bytes));
  }
  flatbuffers::Verifier verifier(begin, bytes, kDepth, static_cast<flatbuffers::uoffset_t>(bytes / 8));
  require(ort::VerifyInferenceSessionBuffer(verifier), ErrorCode::kFail,
          "the file is truncated or damaged: it has the identifier of a model in ORT format, but its "
          "structure is not valid (",
          counted(bytes, "byte"), "), or its subgraphs are nested too deeply");
  onnx::ModelProto proto = OrtReader(bytes).read(*ort::GetInferenceSession(begin));
  proto.kept = std::move(copy);
  return proto;
}

}  // namespace ortrain
