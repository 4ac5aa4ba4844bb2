#include "graph/onnx_io.h"

#include <algorithm>
#include <limits>
#include <set>

#include "graph/checked_model.h"
#include "graph/onnx_reader.h"
#include "graph/onnx_tensor.h"
#include "graph/ort_reader.h"
#include "runtime/file.h"
#include "runtime/generated/parts.h"
#include "runtime/path.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

// The raw data of the message stay in `data`.
onnx::ModelProto parse(const char* data, size_t bytes, ModelFormat format) {
  if (format == ModelFormat::kOrt || (format == ModelFormat::kAny && is_ort_model(data, bytes)))
    return parse_ort_model(data, bytes);
  require(bytes > 0, ErrorCode::kInvalidProtobuf, "it is empty");
  require(bytes <= protobuf::kMostBytes, ErrorCode::kInvalidProtobuf, "it has ", counted(bytes, "byte"),
          ", more than the 2 GB that a protobuf message can hold; store its weights as external data");
  onnx::ModelProto proto;
  // The parser limits the depth of nesting, so recursion over its result needs no limit.
  if (!protobuf::read({data, bytes}, proto.kType, &proto))
    fail(ErrorCode::kInvalidProtobuf, "expected an ONNX model, found ", describe_content(data, bytes),
         ", which is not a complete protobuf message (another format, truncated or damaged)");
  require(static_cast<bool>(proto.graph), ErrorCode::kInvalidProtobuf, "expected an ONNX model, found ",
          describe_content(data, bytes), ", which has no graph");
  return proto;
}

// Runs `read` and `check`, and adds to their errors which model was being read.
template <typename F>
Model with_origin(const std::string& origin, void (*check)(const Model&), F&& read) {
  try {
    Model model = read();
    if (check) check(model);
    return model;
  } catch (const Error& error) {
    fail(error.code(), "cannot read the ", origin, ": ", error.message());
  }
}

void write_type(const ValueInfo& value, onnx::TypeProto& type) {
  onnx::TypeProto* of = value.is_optional ? &type.optional_type.make().elem_type.make() : &type;
  if (value.is_sequence) of = &of->sequence_type.make().elem_type.make();
  if (value.dtype == DType::kUndefined && !value.dims) return;
  onnx::TypeProto::Tensor& tensor = of->tensor_type.make();
  tensor.elem_type = static_cast<int32_t>(value.dtype);
  if (!value.dims) return;
  onnx::TensorShapeProto& shape = tensor.shape.make();
  for (const Dim& from : *value.dims) {
    auto& dim = shape.dim.emplace_back();
    if (from.known())
      dim.dim_value = from.value;
    else if (!from.symbol.empty())
      dim.dim_param = from.symbol;
  }
}

void write_value(const ValueInfo& value, onnx::ValueInfoProto& proto) {
  proto.name = value.name;
  if (value.dtype != DType::kUndefined || value.dims || !value.is_tensor())
    write_type(value, proto.type.make());
}

enum class Data { kWritten, kLeftOut };  // of initializers

void write_graph(const Graph& graph, bool initializers_are_inputs, onnx::GraphProto& proto,
                 Data data = Data::kWritten, const PlaceOf& place_of = nullptr);

void write_attribute(const std::string& name, const Attribute& attribute, onnx::AttributeProto& proto) {
  using Type = onnx::AttributeProto;
  proto.name = name;
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, int64_t>) {
          proto.type = Type::INT;
          proto.i = value;
        } else if constexpr (std::is_same_v<T, float>) {
          proto.type = Type::FLOAT;
          proto.f = value;
        } else if constexpr (std::is_same_v<T, std::string>) {
          proto.type = Type::STRING;
          proto.s = value;
        } else if constexpr (std::is_same_v<T, Tensor>) {
          proto.type = Type::TENSOR;
          write_tensor(value, "", proto.t.make());
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          proto.type = Type::INTS;
          proto.ints = value;
        } else if constexpr (std::is_same_v<T, std::vector<float>>) {
          proto.type = Type::FLOATS;
          proto.floats = value;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          proto.type = Type::STRINGS;
          proto.strings = value;
        } else if constexpr (std::is_same_v<T, ValueInfo>) {
          proto.type = Type::TYPE_PROTO;
          write_type(value, proto.tp.make());
        } else {
          proto.type = Type::GRAPH;
          write_graph(*value, false, proto.g.make());
        }
      },
      attribute);
}

void write_initializer(const Tensor& value, const std::string& name, Data data, const PlaceOf& place_of,
                       onnx::TensorProto& proto) {
  const std::optional<ExternalPlace> place = place_of ? place_of(name, value) : std::nullopt;
  if (data == Data::kWritten && !place) return write_tensor(value, name, proto);
  if (place) {
    const auto add = [&](const char* key, std::string text) {
      auto& entry = proto.external_data.emplace_back();
      entry.key = key;
      entry.value = std::move(text);
    };
    proto.data_location = onnx::TensorProto::EXTERNAL;
    add("location", place->file);
    add("offset", std::to_string(place->offset));
    add("length", std::to_string(place->bytes));
  }
  proto.name = name;
  proto.data_type = static_cast<int32_t>(value.dtype());
  proto.dims = value.shape();
}

void write_graph(const Graph& graph, bool initializers_are_inputs, onnx::GraphProto& proto, Data data,
                 const PlaceOf& place_of) {
  proto.name = graph.name.empty() ? "graph" : graph.name;  // ONNX demands one; ORT format has none
  for (const ValueInfo& input : graph.inputs) write_value(input, proto.input.emplace_back());
  for (const std::string& name : graph.initializer_order) {
    write_initializer(graph.initializers.at(name), name, data, place_of, proto.initializer.emplace_back());
    if (initializers_are_inputs) write_value(*graph.info(name), proto.input.emplace_back());
  }
  for (const ValueInfo& output : graph.outputs) write_value(output, proto.output.emplace_back());
  // Sorted by name, so that the same model gives the same bytes.
  std::set<std::string> inner;
  for (const auto& [name, value] : graph.value_info) inner.insert(name);
  for (const std::string& name : inner)
    write_value(graph.value_info.at(name), proto.value_info.emplace_back());
  for (const Node& node : graph.nodes) {
    auto& out = proto.node.emplace_back();
    out.op_type = node.op_type;
    out.domain = node.domain;
    out.name = node.name;
    out.input = node.inputs;
    out.output = node.outputs;
    for (const auto& [name, attribute] : node.attributes)
      write_attribute(name, attribute, out.attribute.emplace_back());
  }
}

onnx::ModelProto proto_of(const Model& model, Data data, const PlaceOf& place_of = nullptr) {
  onnx::ModelProto proto;
  proto.ir_version = model.ir_version;
  for (const auto& [domain, version] : model.opsets) {
    auto& opset = proto.opset_import.emplace_back();
    opset.domain = domain;
    opset.version = version;
  }
  proto.producer_name = model.producer_name;
  proto.producer_version = model.producer_version;
  proto.domain = model.domain;
  proto.doc_string = model.doc_string;
  proto.model_version = model.model_version;
  for (const auto& [key, value] : model.metadata) {
    auto& entry = proto.metadata_props.emplace_back();
    entry.key = key;
    entry.value = value;
  }
  write_graph(model.graph, model.ir_version < 4, proto.graph.make(), data, place_of);
  return proto;
}

}  // namespace

Model read_model(const std::filesystem::path& path, const ReadOptions& options) {
  std::string content = read_file(path, "model");
  return with_origin(concat("model '", to_utf8(path), "'"), options.check, [&] {
    onnx::ModelProto proto = parse(content.data(), content.size(), options.format);
    return convert_model(proto, path.has_parent_path() ? path.parent_path() : ".", options);
  });
}

Model read_model(const void* data, size_t bytes, const std::string& origin,
                 const std::filesystem::path& directory, const ReadOptions& options) {
  return with_origin(origin, options.check, [&] {
    require(data != nullptr || bytes == 0, ErrorCode::kInvalidArgument, "the pointer to its bytes is null");
    onnx::ModelProto proto = parse(static_cast<const char*>(data), bytes, options.format);
    return convert_model(proto, directory, options);
  });
}

void fail_without_writers() {
  fail(ErrorCode::kNotImplemented, "this build of the library leaves out ", kWritersPart.title,
       "; build it with the CMake option ", kWritersPart.option, "=ON");
}

std::string write_model(const Model& model, const PlaceOf& place_of) {
  if constexpr (!kWritersPart.is_built) fail_without_writers();
  const onnx::ModelProto proto = proto_of(model, Data::kWritten, place_of);
  const size_t bytes = protobuf::size(proto.kType, &proto);
  require(bytes <= protobuf::kMostBytes, ErrorCode::kFail, "cannot write the model: it would take ",
          counted(bytes, "byte"), ", more than the 2 GB that an ONNX file can hold");
  return protobuf::write(proto.kType, &proto);
}

Model checked_model(const Model& model, const ReadOptions& options) {
  ReadOptions given = options;
  given.given.any.insert(model.graph.initializers.begin(), model.graph.initializers.end());
  onnx::ModelProto proto = proto_of(model, Data::kLeftOut);
  Model checked = convert_model(proto, {}, given);
  checked.graph.name = model.graph.name;  // which has to be there only in files
  if (options.check) options.check(checked);
  return checked;
}

namespace {

// Whether the model with its initializers fits into one file.
bool fits_into_a_file(const Model& model) {
  constexpr size_t kFields = 32;  // the most that lengths and tags of an initializer's data take
  const onnx::ModelProto proto = proto_of(model, Data::kLeftOut);
  size_t bytes = protobuf::size(proto.kType, &proto);
  for (const auto& [name, value] : model.graph.initializers) bytes += value.bytes() + kFields;
  return bytes <= protobuf::kMostBytes;
}

}  // namespace

void write_model(const Model& model, const std::filesystem::path& path, WeightPlace weights) {
  if constexpr (!kWritersPart.is_built) fail_without_writers();
  if (weights == WeightPlace::kAuto && fits_into_a_file(model)) {
    const onnx::ModelProto proto = proto_of(model, Data::kWritten);
    FileWriter file(path, "model");
    protobuf::write(proto.kType, &proto, [&](const void* data, size_t bytes) { file.write(data, bytes); });
    return file.commit();
  }
  constexpr size_t kSmall = 1024, kPage = 4096;  // programs map the data of initializers in pages
  const std::filesystem::path apart = with_suffix(path.filename(), ".data");
  FileWriter data(path.parent_path() / apart, "weights of the model");
  const std::string content =
      write_model(model, [&](const std::string&, const Tensor& tensor) -> std::optional<ExternalPlace> {
        if (tensor.dtype() == DType::kString || tensor.bytes() <= kSmall) return std::nullopt;
        data.skip_to((data.position() + kPage - 1) / kPage * kPage);
        const ExternalPlace place{to_utf8(apart), static_cast<int64_t>(data.position()), tensor.bytes()};
        data.write(tensor.raw(), tensor.bytes());
        return place;
      });
  data.commit();
  write_file(path, "model", content.data(), content.size());
}

}  // namespace ortrain
