// Our reader and writer of protobuf messages, compared with protobuf's own classes.
#include "graph/protobuf.h"

#include <string>
#include <string_view>

#include "graph/onnx_proto.h"
#include "onnx-ml.pb.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

using Ours = ortrain::onnx::ModelProto;
using Theirs = ::onnx::ModelProto;

std::string written(const Ours& model) { return protobuf::write(model.kType, &model); }

bool accepted(std::string_view bytes) {
  Ours model;
  return protobuf::read(bytes, model.kType, &model);
}

// Whether both accept the bytes or both reject them, and read the same: what protobuf writes again in its
// usual form is the same message for our reader.
bool agree(const std::string& bytes) {
  Theirs theirs;
  Ours ours, usual;
  const bool valid = theirs.ParseFromString(bytes);
  if (protobuf::read(bytes, ours.kType, &ours) != valid) return false;
  if (!valid) return true;
  const std::string again = theirs.SerializeAsString();
  return protobuf::read(again, usual.kType, &usual) && written(ours) == written(usual);
}

// Tensors and sparse tensors with every field that we store.
void add_tensors(::onnx::GraphProto& graph, const ::onnx::StringStringEntryProto& entry) {
  auto& tensor = *graph.add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(1);
  for (const int64_t dim : {0, 1, -1, 1 << 20}) tensor.add_dims(dim);
  tensor.mutable_segment();
  for (const float value : {0.0f, -1.5f}) tensor.add_float_data(value);
  for (const int value : {1, -1, 300}) tensor.add_int32_data(value);
  tensor.add_string_data("text");
  tensor.add_string_data("");
  for (const int64_t value : {int64_t{1}, INT64_MIN}) tensor.add_int64_data(value);
  tensor.set_raw_data(std::string("\0\1\2", 3));
  tensor.add_double_data(2.5);
  tensor.add_uint64_data(UINT64_MAX);
  *tensor.add_external_data() = entry;
  tensor.set_data_location(::onnx::TensorProto::EXTERNAL);
  auto& sparse = *graph.add_sparse_initializer();
  sparse.mutable_values()->set_name("s");
  sparse.mutable_indices()->add_dims(4);
  sparse.add_dims(5);
}

// A function with every field that we store.
void add_function(Theirs& model, const ::onnx::NodeProto& node) {
  auto& function = *model.add_functions();
  function.set_name("f");
  function.set_domain("local");
  function.set_overload("v");
  function.add_input("x");
  function.add_output("y");
  function.add_attribute("alpha");
  *function.add_attribute_proto() = node.attribute(0);
  *function.add_node() = node;
  *function.add_opset_import() = model.opset_import(0);
}

// A model with every field that we store.
Theirs with_all_fields() {
  Theirs model;
  model.set_ir_version(9);
  model.set_producer_name("producer");
  model.set_producer_version("1");
  model.set_domain("domain");
  model.set_model_version(-3);
  model.set_doc_string("text");
  auto& opset = *model.add_opset_import();
  opset.set_domain("");
  opset.set_version(21);
  auto& entry = *model.add_metadata_props();
  entry.set_key("key");
  entry.set_value("");
  auto& graph = *model.mutable_graph();
  graph.set_name("graph");
  graph.set_doc_string("graph text");
  add_tensors(graph, entry);
  auto& value = *graph.add_input();
  value.set_name("x");
  auto& shape = *value.mutable_type()->mutable_tensor_type()->mutable_shape();
  value.mutable_type()->mutable_tensor_type()->set_elem_type(0);
  shape.add_dim()->set_dim_value(0);
  shape.add_dim()->set_dim_param("");
  shape.add_dim()->set_denotation("DATA_BATCH");
  auto& sequence = *graph.add_output()->mutable_type()->mutable_sequence_type()->mutable_elem_type();
  sequence.mutable_optional_type()->mutable_elem_type()->mutable_sparse_tensor_type()->set_elem_type(7);
  auto& map = *graph.add_value_info()->mutable_type()->mutable_map_type();
  map.set_key_type(8);
  map.mutable_value_type()->mutable_opaque_type();
  auto& node = *graph.add_node();
  for (const char* name : {"a", "", "b"}) node.add_input(name);
  node.add_output("c");
  node.set_name("node");
  node.set_op_type("Op");
  node.set_domain("com.example");
  node.set_overload("o");
  auto& attribute = *node.add_attribute();
  attribute.set_name("all");
  attribute.set_ref_attr_name("other");
  attribute.set_type(::onnx::AttributeProto::TYPE_PROTOS);
  attribute.set_f(0);
  attribute.set_i(0);
  attribute.set_s("");
  attribute.mutable_t()->set_data_type(7);
  attribute.mutable_g()->set_name("inner");
  attribute.mutable_sparse_tensor()->add_dims(1);
  attribute.mutable_tp()->mutable_tensor_type()->set_elem_type(1);
  for (const float number : {1.0f, 2.0f}) attribute.add_floats(number);
  for (const int64_t number : {1, 200}) attribute.add_ints(number);
  attribute.add_strings("s");
  add_function(model, node);
  return model;
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string length_delimited(int field, const std::string& content) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(content.size()) + content;
}

}  // namespace

TEST_CASE("every field that is stored is read, and written as protobuf writes it") {
  const std::string bytes = with_all_fields().SerializeAsString();
  Ours ours;
  REQUIRE(protobuf::read(bytes, ours.kType, &ours));
  CHECK(written(ours) == bytes);
  CHECK(protobuf::size(ours.kType, &ours) == bytes.size());
  CHECK(ours.graph->initializer[0].raw_data == std::string_view("\0\1\2", 3));
  CHECK(ours.graph->node[0].attribute[0].type == ortrain::onnx::AttributeProto::TYPE_PROTOS);
  CHECK(ours.functions[0].attribute[0] == "alpha");
}

TEST_CASE("models of other programs are read as protobuf reads them") {
  for (const std::string& name : kCases)
    for (const char* file : {"model.onnx", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"})
      if (std::filesystem::exists(kFixtures / name / file)) {
        INFO(name << "/" << file);
        CHECK(agree(content_of(kFixtures / name / file)));
      }
}

TEST_CASE("every truncation and every change of a byte is accepted or rejected as protobuf does") {
  Theirs model = with_all_fields();
  // Messages that are not stored are checked.
  auto& node = *model.mutable_graph()->mutable_node(0);
  auto& sharding = *node.add_device_configurations()->add_sharding_spec();
  sharding.add_device(300);
  sharding.add_index_to_device_group_map()->add_value(1);
  sharding.add_sharded_dim()->add_simple_sharding()->set_dim_value(4);
  model.add_training_info()->mutable_algorithm()->set_name("algorithm");
  model.mutable_graph()->add_quantization_annotation()->add_quant_parameter_tensor_names()->set_key("k");
  node.add_metadata_props()->set_value("v");
  model.clear_functions();
  const std::string bytes = model.SerializeAsString();
  size_t wrong = 0, valid = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    wrong += !agree(bytes.substr(0, i));
    std::string changed = bytes;
    for (int value = 0; value < 256; ++value) {
      changed[i] = static_cast<char>(value);
      wrong += !agree(changed);
      valid += accepted(changed);
    }
  }
  CHECK(wrong == 0);
  CHECK(valid > bytes.size());  // else the loop shows little
}

TEST_CASE("messages and groups are nested at most 100 deep") {
  for (const int levels : {99, 100, 101}) {
    std::string groups, type;
    for (int i = 0; i < levels; ++i) groups = varint(5 << 3 | 3) + groups + varint(5 << 3 | 4);
    INFO(levels);
    CHECK(agree(groups));
    CHECK(accepted(groups) == (levels <= 100));
    // A model holds a graph, that an input, that a type; each sequence holds two messages.
    for (int i = 0; i < levels - 3; ++i) type = length_delimited(i % 2 == 0 ? 1 : 4, type);
    CHECK(agree(length_delimited(7, length_delimited(11, length_delimited(2, type)))));
  }
}

TEST_CASE("unusual forms are read as protobuf reads them") {
  const auto graph = [](const std::string& content) { return length_delimited(7, content); };
  const std::string dims_packed = length_delimited(1, varint(3) + varint(4));
  const std::string tag_of_float = varint(4 << 3 | 5);
  const auto tensor = [&](const std::string& content) { return graph(length_delimited(5, content)); };
  for (const std::string& bytes : {
           tensor(dims_packed),                                        // in the other form
           tensor(tag_of_float + std::string(4, 'x')),                 // in the other form
           tensor(length_delimited(4, "12345")),                       // not a whole number of elements
           tensor(length_delimited(1, "\x80")),                        // ends within a number
           tensor(varint(14 << 3) + varint(2)),                        // an enum's value that is unknown
           tensor(varint(14 << 3) + varint((uint64_t{1} << 32) + 1)),  // cut to 32 bits
           tensor(varint(2 << 3) + varint(UINT64_MAX)),                // negative
           tensor(length_delimited(2, "text")),                        // of another wire type: unknown
           graph(length_delimited(2, "first")) + graph(length_delimited(2, "last")),  // merged
           std::string("\x0a\x80\x80\x80\x80\x08", 6),                                // a length above 2 GB
           std::string("\x80\x80\x80\x80\x80\x01\x00", 7),                            // a tag of six bytes
           varint(1 << 3) + std::string(10, '\xff'),          // a number of more than ten bytes
           varint(1 << 3) + std::string(9, '\xff') + '\x7f',  // more than 64 bits
           varint(0 << 3 | 2) + varint(0),                    // field 0
           varint(40 << 3 | 6),
           varint(40 << 3 | 7),
           varint(40 << 3 | 4),                        // wire types that cannot be
           varint(40 << 3 | 3) + varint(41 << 3 | 4),  // another group's end
           std::string(),
       }) {
    CAPTURE(bytes);
    CHECK(agree(bytes));
  }
  // Of the kinds of a type, the last one counts.
  const std::string type = length_delimited(1, "") + length_delimited(4, length_delimited(1, ""));
  const std::string bytes = graph(length_delimited(11, length_delimited(2, type)));
  CHECK(agree(bytes));
  Ours model;
  REQUIRE(protobuf::read(bytes, model.kType, &model));
  CHECK(!model.graph->input[0].type->tensor_type);
  CHECK(static_cast<bool>(model.graph->input[0].type->sequence_type));
}
