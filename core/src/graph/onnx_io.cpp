#include "graph/onnx_io.h"

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <limits>
#include <set>

#include "graph/checked_model.h"
#include "graph/onnx_reader.h"
#include "graph/onnx_tensor.h"
#include "graph/ort_reader.h"
#include "runtime/file.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

constexpr size_t kMostBytes = std::numeric_limits<int>::max();  // of a protobuf message

// Protobuf logs to stderr by itself; our messages report its errors.
void silence_protobuf() {
  [[maybe_unused]] static const bool once = (google::protobuf::SetLogHandler(nullptr), true);
}

onnx::ModelProto parse(const char* data, size_t bytes, ModelFormat format) {
  if (format == ModelFormat::kOrt || (format == ModelFormat::kAny && is_ort_model(data, bytes)))
    return parse_ort_model(data, bytes);
  silence_protobuf();
  require(bytes > 0, ErrorCode::kInvalidProtobuf, "it is empty");
  require(bytes <= kMostBytes, ErrorCode::kInvalidProtobuf, "it has ", bytes,
          " bytes, more than the 2 GB that a protobuf message can hold; store its weights as external data");
  onnx::ModelProto proto;
  // The parser limits the depth of nesting, so recursion over its result needs no limit.
  if (!proto.ParseFromArray(data, static_cast<int>(bytes)))
    fail(ErrorCode::kInvalidProtobuf, "expected an ONNX model, found ", describe_content(data, bytes),
         ", which is not a complete protobuf message (another format, truncated or damaged)");
  require(proto.has_graph(), ErrorCode::kInvalidProtobuf, "expected an ONNX model, found ",
          describe_content(data, bytes), ", which has no graph");
  return proto;
}

// Runs `read` and `check`, and adds to their errors what was being read.
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
  onnx::TypeProto* of = value.is_optional ? type.mutable_optional_type()->mutable_elem_type() : &type;
  if (value.is_sequence) of = of->mutable_sequence_type()->mutable_elem_type();
  if (value.dtype == DType::kUndefined && !value.dims) return;
  of->mutable_tensor_type()->set_elem_type(static_cast<int32_t>(value.dtype));
  if (!value.dims) return;
  auto* shape = of->mutable_tensor_type()->mutable_shape();
  for (const Dim& from : *value.dims) {
    auto* dim = shape->add_dim();
    if (from.known())
      dim->set_dim_value(from.value);
    else if (!from.symbol.empty())
      dim->set_dim_param(from.symbol);
  }
}

void write_value(const ValueInfo& value, onnx::ValueInfoProto& proto) {
  proto.set_name(value.name);
  if (value.dtype != DType::kUndefined || value.dims || !value.is_tensor())
    write_type(value, *proto.mutable_type());
}

enum class Data { kWritten, kLeftOut };  // of initializers

void write_graph(const Graph& graph, bool initializers_are_inputs, onnx::GraphProto& proto,
                 Data data = Data::kWritten, const PlaceOf& place_of = nullptr);

void write_attribute(const std::string& name, const Attribute& attribute, onnx::AttributeProto& proto) {
  using Type = onnx::AttributeProto;
  proto.set_name(name);
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, int64_t>) {
          proto.set_type(Type::INT);
          proto.set_i(value);
        } else if constexpr (std::is_same_v<T, float>) {
          proto.set_type(Type::FLOAT);
          proto.set_f(value);
        } else if constexpr (std::is_same_v<T, std::string>) {
          proto.set_type(Type::STRING);
          proto.set_s(value);
        } else if constexpr (std::is_same_v<T, Tensor>) {
          proto.set_type(Type::TENSOR);
          write_tensor(value, "", *proto.mutable_t());
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          proto.set_type(Type::INTS);
          proto.mutable_ints()->Add(value.begin(), value.end());
        } else if constexpr (std::is_same_v<T, std::vector<float>>) {
          proto.set_type(Type::FLOATS);
          proto.mutable_floats()->Add(value.begin(), value.end());
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          proto.set_type(Type::STRINGS);
          for (const std::string& text : value) proto.add_strings(text);
        } else if constexpr (std::is_same_v<T, ValueInfo>) {
          proto.set_type(Type::TYPE_PROTO);
          write_type(value, *proto.mutable_tp());
        } else {
          proto.set_type(Type::GRAPH);
          write_graph(*value, false, *proto.mutable_g());
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
      auto* entry = proto.add_external_data();
      entry->set_key(key);
      entry->set_value(std::move(text));
    };
    proto.set_data_location(onnx::TensorProto::EXTERNAL);
    add("location", place->file);
    add("offset", std::to_string(place->offset));
    add("length", std::to_string(place->bytes));
  }
  proto.set_name(name);
  proto.set_data_type(static_cast<int32_t>(value.dtype()));
  proto.mutable_dims()->Add(value.shape().begin(), value.shape().end());
}

void write_graph(const Graph& graph, bool initializers_are_inputs, onnx::GraphProto& proto, Data data,
                 const PlaceOf& place_of) {
  proto.set_name(graph.name.empty() ? "graph" : graph.name);  // ONNX demands one; ORT format has none
  for (const ValueInfo& input : graph.inputs) write_value(input, *proto.add_input());
  for (const std::string& name : graph.initializer_order) {
    write_initializer(graph.initializers.at(name), name, data, place_of, *proto.add_initializer());
    if (initializers_are_inputs) write_value(*graph.info(name), *proto.add_input());
  }
  for (const ValueInfo& output : graph.outputs) write_value(output, *proto.add_output());
  // Sorted by name, so that the same model gives the same bytes.
  std::set<std::string> inner;
  for (const auto& [name, value] : graph.value_info) inner.insert(name);
  for (const std::string& name : inner) write_value(graph.value_info.at(name), *proto.add_value_info());
  for (const Node& node : graph.nodes) {
    auto* out = proto.add_node();
    out->set_op_type(node.op_type);
    if (!node.domain.empty()) out->set_domain(node.domain);
    if (!node.name.empty()) out->set_name(node.name);
    for (const std::string& input : node.inputs) out->add_input(input);
    for (const std::string& output : node.outputs) out->add_output(output);
    for (const auto& [name, attribute] : node.attributes)
      write_attribute(name, attribute, *out->add_attribute());
  }
}

onnx::ModelProto proto_of(const Model& model, Data data, const PlaceOf& place_of = nullptr) {
  silence_protobuf();
  onnx::ModelProto proto;
  proto.set_ir_version(model.ir_version);
  for (const auto& [domain, version] : model.opsets) {
    auto* opset = proto.add_opset_import();
    opset->set_domain(domain);
    opset->set_version(version);
  }
  if (!model.producer_name.empty()) proto.set_producer_name(model.producer_name);
  if (!model.producer_version.empty()) proto.set_producer_version(model.producer_version);
  if (!model.domain.empty()) proto.set_domain(model.domain);
  if (!model.doc_string.empty()) proto.set_doc_string(model.doc_string);
  if (model.model_version != 0) proto.set_model_version(model.model_version);
  for (const auto& [key, value] : model.metadata) {
    auto* entry = proto.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  }
  write_graph(model.graph, model.ir_version < 4, *proto.mutable_graph(), data, place_of);
  return proto;
}

}  // namespace

Model read_model(const std::filesystem::path& path, const ReadOptions& options) {
  std::string content = read_file(path, "model");
  return with_origin(concat("model '", path.string(), "'"), options.check, [&] {
    onnx::ModelProto proto = parse(content.data(), content.size(), options.format);
    std::string().swap(content);
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

std::string write_model(const Model& model, const PlaceOf& place_of) {
  const onnx::ModelProto proto = proto_of(model, Data::kWritten, place_of);
  const size_t bytes = proto.ByteSizeLong();
  require(bytes <= kMostBytes, ErrorCode::kFail, "cannot write the model: it would take ", bytes,
          " bytes, more than the 2 GB that an ONNX file can hold");
  std::string out;
  require(proto.SerializeToString(&out), ErrorCode::kFail,
          "cannot write the model: protobuf failed to serialize it");
  return out;
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
  size_t bytes = proto_of(model, Data::kLeftOut).ByteSizeLong();
  for (const auto& [name, value] : model.graph.initializers) bytes += value.bytes() + kFields;
  return bytes <= kMostBytes;
}

}  // namespace

void write_model(const Model& model, const std::filesystem::path& path, WeightPlace weights) {
  if (weights == WeightPlace::kAuto && fits_into_a_file(model)) {
    const std::string content = write_model(model);
    return write_file(path, "model", content.data(), content.size());
  }
  constexpr size_t kSmall = 1024, kPage = 4096;  // programs map the data of initializers in pages
  const std::filesystem::path apart = path.filename().string() + ".data";
  FileWriter data(path.parent_path() / apart, "weights of the model");
  const std::string content =
      write_model(model, [&](const std::string&, const Tensor& tensor) -> std::optional<ExternalPlace> {
        if (tensor.dtype() == DType::kString || tensor.bytes() <= kSmall) return std::nullopt;
        data.skip_to((data.position() + kPage - 1) / kPage * kPage);
        const ExternalPlace place{apart.string(), static_cast<int64_t>(data.position()), tensor.bytes()};
        data.write(tensor.raw(), tensor.bytes());
        return place;
      });
  data.commit();
  write_file(path, "model", content.data(), content.size());
}

}  // namespace ortrain
