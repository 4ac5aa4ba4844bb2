#include "graph/onnx_io.h"

#include <sys/stat.h>

#include <cstring>
#include <set>

#include "full_disk.h"
#include "onnx-ml.pb.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

bool same(const Graph& a, const Graph& b);

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

bool same(const ValueInfo& a, const ValueInfo& b) {
  return a.name == b.name && a.dtype == b.dtype && a.dims == b.dims && a.is_sequence == b.is_sequence;
}

bool same(const Attribute& a, const Attribute& b) {
  if (a.index() != b.index()) return false;
  if (const auto* t = std::get_if<Tensor>(&a)) return same(*t, std::get<Tensor>(b));
  if (const auto* g = std::get_if<std::shared_ptr<Graph>>(&a))
    return same(**g, *std::get<std::shared_ptr<Graph>>(b));
  if (const auto* f = std::get_if<float>(&a)) return std::memcmp(f, &std::get<float>(b), sizeof *f) == 0;
  return std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Tensor>)
          return false;
        else
          return value == std::get<T>(b);
      },
      a);
}

bool same(const Node& a, const Node& b) {
  if (a.domain != b.domain || a.op_type != b.op_type || a.name != b.name || a.inputs != b.inputs ||
      a.outputs != b.outputs || a.attributes.size() != b.attributes.size())
    return false;
  for (const auto& [name, attribute] : a.attributes)
    if (!b.has(name) || !same(attribute, b.attributes.at(name))) return false;
  return true;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return same(x, y); });
}

bool same(const Graph& a, const Graph& b) {
  if (a.name != b.name || !same(a.inputs, b.inputs) || !same(a.outputs, b.outputs) ||
      !same(a.nodes, b.nodes) || a.initializer_order != b.initializer_order ||
      a.value_info.size() != b.value_info.size())
    return false;
  for (const auto& [name, value] : a.initializers)
    if (!b.is_initializer(name) || !same(value, b.initializers.at(name))) return false;
  for (const auto& [name, value] : a.value_info)
    if (b.value_info.count(name) == 0 || !same(value, b.value_info.at(name))) return false;
  return true;
}

bool same(const Model& a, const Model& b) {
  return a.ir_version == b.ir_version && a.opsets == b.opsets && a.producer_name == b.producer_name &&
         a.producer_version == b.producer_version && a.domain == b.domain && a.doc_string == b.doc_string &&
         a.model_version == b.model_version && a.metadata == b.metadata && same(a.graph, b.graph);
}

void add_value(onnx::ValueInfoProto& v, const std::string& name, int type = 1,
               std::vector<int64_t> dims = {2}) {
  v.set_name(name);
  v.mutable_type()->mutable_tensor_type()->set_elem_type(type);
  for (const int64_t d : dims)
    v.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(d);
}

template <typename Holder>
onnx::NodeProto& add_node(Holder& holder, const std::string& type, std::vector<std::string> inputs,
                          std::vector<std::string> outputs, const std::string& domain = "",
                          const std::string& name = "") {
  auto& node = *holder.add_node();
  node.set_op_type(type);
  node.set_domain(domain);
  node.set_name(name);
  for (const auto& i : inputs) node.add_input(i);
  for (const auto& o : outputs) node.add_output(o);
  return node;
}

// x -> Relu -> y
onnx::ModelProto small_model() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  auto* opset = model.add_opset_import();
  opset->set_domain("");
  opset->set_version(17);
  auto& graph = *model.mutable_graph();
  graph.set_name("g");
  add_value(*graph.add_input(), "x");
  add_value(*graph.add_output(), "y");
  add_node(graph, "Relu", {"x"}, {"y"}, "", "relu");
  return model;
}

onnx::TensorProto& add_tensor(onnx::ModelProto& model, const std::string& name, int type,
                              std::vector<int64_t> dims) {
  auto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(type);
  for (const int64_t d : dims) tensor.add_dims(d);
  return tensor;
}

Model read(const onnx::ModelProto& proto, const std::filesystem::path& folder = {}) {
  const std::string bytes = proto.SerializeAsString();
  return read_model(bytes.data(), bytes.size(), "test model", folder);
}

void refuse(ErrorCode code, const std::vector<std::string>& parts, const onnx::ModelProto& proto,
            const std::filesystem::path& folder = {}) {
  std::vector<std::string> all = parts;
  all.push_back("cannot read the test model: ");
  check_error(code, all, [&] { read(proto, folder); });
}

onnx::FunctionProto& add_function(onnx::ModelProto& model, const std::string& name,
                                  std::vector<std::string> inputs, std::vector<std::string> outputs) {
  if (model.opset_import_size() == 1) {
    auto* opset = model.add_opset_import();
    opset->set_domain("local");
    opset->set_version(1);
  }
  auto& f = *model.add_functions();
  f.set_domain("local");
  f.set_name(name);
  for (const auto& i : inputs) f.add_input(i);
  for (const auto& o : outputs) f.add_output(o);
  auto* opset = f.add_opset_import();
  opset->set_domain("");
  opset->set_version(17);
  return f;
}

}  // namespace

TEST_CASE("Every fixture model is the same after writing and reading") {
  for (const std::string& name : kCases)
    for (const char* file : {"model.onnx", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx",
                             "exported_after.onnx"}) {
      const auto path = kFixtures / name / file;
      if (std::string(file) == "exported_after.onnx" && !std::filesystem::exists(path)) continue;
      INFO(path);
      const Model model = read_model(path);
      onnx::ModelProto proto;
      REQUIRE(proto.ParseFromString(content_of(path)));
      CHECK(model.ir_version == proto.ir_version());
      CHECK(model.opsets.size() == static_cast<size_t>(proto.opset_import_size()));
      for (const auto& opset : proto.opset_import()) CHECK(model.opset(opset.domain()) == opset.version());
      CHECK(model.graph.nodes.size() == static_cast<size_t>(proto.graph().node_size()));
      CHECK(model.graph.inputs.size() == static_cast<size_t>(proto.graph().input_size()));
      for (const auto& tensor : proto.graph().initializer()) {
        REQUIRE(model.graph.is_initializer(tensor.name()));
        const Tensor& read = model.graph.initializers.at(tensor.name());
        if (tensor.has_raw_data())
          CHECK(std::string(reinterpret_cast<const char*>(read.raw()), read.bytes()) == tensor.raw_data());
      }
      const std::string written = write_model(model);
      CHECK(same(model, read_model(written.data(), written.size())));
      CHECK(written == write_model(read_model(written.data(), written.size())));

      Folder folder;
      write_model(model, folder / "out.onnx");
      CHECK(content_of(folder / "out.onnx") == written);
    }
}

TEST_CASE("Sequences, symbolic dimensions and metadata are kept") {
  const Model optimizer = read_model(kFixtures / "mlp_adamw" / "optimizer_model.onnx");
  CHECK(optimizer.graph.inputs[2].name == "params");
  CHECK(optimizer.graph.inputs[2].is_sequence);
  CHECK(optimizer.graph.inputs[2].dtype == DType::kFloat);
  CHECK_FALSE(optimizer.graph.inputs[0].is_sequence);

  auto proto = small_model();
  auto& dims =
      *proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
  dims.add_dim()->set_dim_param("batch");
  dims.add_dim();
  dims.add_dim()->set_dim_value(-1);  // how some exporters write an unknown dimension
  proto.set_doc_string("about");
  auto* entry = proto.add_metadata_props();
  entry->set_key("author");
  entry->set_value("me");
  const Model model = read(proto);
  const auto& read_dims = *model.graph.inputs[0].dims;
  REQUIRE(read_dims.size() == 4);
  CHECK(read_dims[0].value == 2);
  CHECK(read_dims[1].symbol == "batch");
  CHECK_FALSE(read_dims[2].known());
  CHECK_FALSE(read_dims[3].known());
  CHECK(model.metadata.at("author") == "me");
  const std::string written = write_model(model);
  CHECK(same(model, read_model(written.data(), written.size())));
}

TEST_CASE("Tensors are read from every storage form") {
  auto proto = small_model();
  auto typed = [&](const std::string& name, int type) -> onnx::TensorProto& {
    return add_tensor(proto, name, type, {2});
  };
  auto fill = [](auto* field, auto a, auto b) {
    field->Add(a);
    field->Add(b);
  };
  fill(typed("f32", 1).mutable_float_data(), 1.5f, -2.0f);
  fill(typed("u8", 2).mutable_int32_data(), 1, 255);
  fill(typed("i8", 3).mutable_int32_data(), -128, 127);
  fill(typed("u16", 4).mutable_int32_data(), 1, 65535);
  fill(typed("i16", 5).mutable_int32_data(), -32768, 3);
  fill(typed("i32", 6).mutable_int32_data(), -5, 6);
  fill(typed("i64", 7).mutable_int64_data(), int64_t{-1} << 40, int64_t{7});
  fill(typed("bool", 9).mutable_int32_data(), 0, 2);
  fill(typed("f16", 10).mutable_int32_data(), 0x3C00, 0xC000);  // 1, -2
  fill(typed("f64", 11).mutable_double_data(), 0.1, 1e300);
  fill(typed("u32", 12).mutable_uint64_data(), uint64_t{1}, uint64_t{4294967295u});
  fill(typed("u64", 13).mutable_uint64_data(), uint64_t{1}, ~uint64_t{0});
  fill(typed("bf16", 16).mutable_int32_data(), 0x3F80, 0xC000);
  auto& complex = *typed("c64", 14).mutable_float_data();
  for (const float v : {1.f, 2.f, 3.f, 4.f}) complex.Add(v);
  const uint8_t raw_floats[] = {0, 0, 0xC0, 0x3F, 0, 0, 0, 0xC0};  // 1.5, -2, little endian
  typed("raw", 1).set_raw_data(raw_floats, 8);
  typed("raw_bool", 9).set_raw_data(std::string("\x00\x07", 2));
  add_tensor(proto, "empty", 1, {0, 3});
  add_tensor(proto, "scalar", 7, {}).add_int64_data(42);
  const Model model = read(proto);
  const auto at = [&](const char* name) { return model.graph.initializers.at(name); };
  CHECK(at("f32").to_double() == std::vector<double>{1.5, -2});
  CHECK(at("raw").to_double() == std::vector<double>{1.5, -2});
  CHECK(at("u8").to_double() == std::vector<double>{1, 255});
  CHECK(at("i8").to_double() == std::vector<double>{-128, 127});
  CHECK(at("u16").to_double() == std::vector<double>{1, 65535});
  CHECK(at("i16").to_double() == std::vector<double>{-32768, 3});
  CHECK(at("i32").to_double() == std::vector<double>{-5, 6});
  CHECK(at("i64").to_int64() == std::vector<int64_t>{int64_t{-1} << 40, 7});
  CHECK(at("bool").to_double() == std::vector<double>{0, 1});
  CHECK(at("raw_bool").to_double() == std::vector<double>{0, 1});
  CHECK(at("f64").to_double() == std::vector<double>{0.1, 1e300});
  CHECK(at("u32").to_double() == std::vector<double>{1, 4294967295.0});
  CHECK(at("u64").data<uint64_t>()[1] == ~uint64_t{0});
  CHECK(at("c64").bytes() == 16);
  CHECK(at("empty").shape() == Shape{0, 3});
  CHECK(at("scalar").shape().empty());
  CHECK(at("scalar").to_int64() == std::vector<int64_t>{42});
  uint16_t half[2];
  std::memcpy(half, at("f16").raw(), 4);
  CHECK((half[0] == 0x3C00 && half[1] == 0xC000));
  const std::string written = write_model(model);
  CHECK(same(model, read_model(written.data(), written.size())));
}

TEST_CASE("Tensors whose data do not fit their type and shape are refused") {
  const auto with = [](const std::function<void(onnx::TensorProto&)>& change, int type,
                       std::vector<int64_t> dims) {
    auto proto = small_model();
    change(add_tensor(proto, "weight", type, std::move(dims)));
    return proto;
  };
  const auto nothing = [](onnx::TensorProto&) {};
  const std::string name = "initializer \"weight\"";
  refuse(ErrorCode::kInvalidGraph, {name, "[2, 3]", "needs 24 bytes", "found 8"},
         with([](auto& t) { t.set_raw_data(std::string(8, 'x')); }, 1, {2, 3}));
  refuse(ErrorCode::kInvalidGraph, {name, "needs 6 values in float_data, found 1"},
         with([](auto& t) { t.add_float_data(1); }, 1, {2, 3}));
  refuse(ErrorCode::kInvalidGraph,
         {name, "needs 1 value in float_data, found 0", "field that is wrong for this type"},
         with([](auto& t) { t.add_int32_data(1); }, 1, {}));
  refuse(ErrorCode::kInvalidGraph, {name, "needs"}, with(nothing, 1, {int64_t{1} << 40}));
  refuse(ErrorCode::kInvalidGraph, {name, "[-1]"}, with(nothing, 1, {-1}));
  refuse(ErrorCode::kInvalidGraph, {name, "not a valid shape"},
         with(nothing, 1, {int64_t{1} << 40, int64_t{1} << 40}));
  refuse(ErrorCode::kInvalidGraph, {name, "not a valid shape"}, with(nothing, 11, {int64_t{1} << 62}));
  refuse(ErrorCode::kInvalidGraph, {name, "300", "int8"},
         with([](auto& t) { t.add_int32_data(300); }, 3, {1}));
  refuse(ErrorCode::kInvalidGraph, {name, "undefined"}, with(nothing, 0, {}));
  refuse(ErrorCode::kNotImplemented, {name, "segments"},
         with([](auto& t) { t.mutable_segment()->set_begin(0); }, 1, {1}));
}

TEST_CASE("What ortrain does not hold is refused, all of it by name") {
  auto proto = small_model();
  add_tensor(proto, "tiny", 99, {1}).set_raw_data("a");
  auto& holes = *proto.mutable_graph()->add_sparse_initializer();
  holes.mutable_values()->set_name("holes");
  holes.mutable_values()->set_data_type(99);
  auto* attribute = proto.mutable_graph()->mutable_node(0)->add_attribute();
  attribute->set_name("kind");
  attribute->set_type(onnx::AttributeProto::SPARSE_TENSORS);
  auto* map = proto.mutable_graph()->add_value_info();
  map->set_name("table");
  map->mutable_type()->mutable_map_type()->set_key_type(7);
  refuse(ErrorCode::kNotImplemented,
         {"\"tiny\"", "data type 99", "\"holes\"", "node \"relu\" (Relu), attribute \"kind\"",
          "SPARSE_TENSOR", "\"table\""},
         proto);
}

TEST_CASE("Sparse initializers are read as dense ones") {
  const auto with = [](std::vector<int64_t> dims, std::vector<int64_t> index_dims,
                       std::vector<int64_t> indices, std::vector<float> values) {
    auto proto = small_model();
    auto& sparse = *proto.mutable_graph()->add_sparse_initializer();
    for (const int64_t dim : dims) sparse.add_dims(dim);
    sparse.mutable_values()->set_name("holes");
    sparse.mutable_values()->set_data_type(1);
    sparse.mutable_values()->add_dims(static_cast<int64_t>(values.size()));
    for (const float item : values) sparse.mutable_values()->add_float_data(item);
    sparse.mutable_indices()->set_data_type(7);
    for (const int64_t dim : index_dims) sparse.mutable_indices()->add_dims(dim);
    for (const int64_t index : indices) sparse.mutable_indices()->add_int64_data(index);
    return proto;
  };
  const auto read = [](const onnx::ModelProto& proto) {
    const std::string bytes = proto.SerializeAsString();
    return read_model(bytes.data(), bytes.size()).graph.initializers.at("holes");
  };
  const Tensor flat = read(with({2, 3}, {2}, {1, 5}, {7, 8})),
               by_dims = read(with({2, 3}, {2, 2}, {0, 1, 1, 2}, {7, 8}));
  for (const Tensor& dense : {flat, by_dims}) {
    CHECK(dense.shape() == Shape{2, 3});
    CHECK(dense.to_double() == std::vector<double>{0, 7, 0, 0, 0, 8});
  }
  CHECK(read(with({4}, {0}, {}, {})).to_double() == std::vector<double>(4));
  const std::string name = "\"holes\"";
  refuse(ErrorCode::kInvalidGraph, {name, "index 1", "not above"}, with({2, 3}, {2}, {5, 5}, {7, 8}));
  refuse(ErrorCode::kInvalidGraph, {name, "index 0", "range"}, with({2, 3}, {2}, {-1, 5}, {7, 8}));
  refuse(ErrorCode::kInvalidGraph, {name, "index 1", "range"}, with({2, 3}, {2, 2}, {0, 1, 1, 3}, {7, 8}));
  refuse(ErrorCode::kInvalidGraph, {name, "2 values", "int64[2, 2]"}, with({2, 3}, {3}, {1, 2, 3}, {7, 8}));
  refuse(ErrorCode::kInvalidGraph, {name, "shape"}, with({}, {1}, {0}, {7}));
  refuse(ErrorCode::kInvalidGraph, {name, "shape"}, with({int64_t{1} << 62, 8}, {1}, {0}, {7}));
  refuse(ErrorCode::kNotImplemented, {name, "4096"}, with({1 << 20}, {1}, {0}, {7}));
}

TEST_CASE("External data are read from beside the model, and from nowhere else") {
  Folder folder;
  std::filesystem::create_directory(folder / "model");
  std::filesystem::create_directory(folder / "model/weights");
  const auto home = folder / "model";
  std::string data(64, '\0');
  const float values[] = {1, 2, 3, 4};
  std::memcpy(data.data() + 16, values, sizeof values);
  put(home / "weights/w.bin", data);
  put(folder / "secret.bin", data);
  const auto model = [](std::vector<std::pair<std::string, std::string>> entries) {
    auto proto = small_model();
    auto& tensor = add_tensor(proto, "weight", 1, {4});
    tensor.set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] : entries) {
      auto* entry = tensor.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    return proto;
  };
  const auto good = model({{"location", "weights/w.bin"}, {"offset", "16"}, {"length", "16"}});
  CHECK(read(good, home).graph.initializers.at("weight").to_double() == std::vector<double>{1, 2, 3, 4});
  put(home / "m.onnx", good.SerializeAsString());
  CHECK(read_model(home / "m.onnx").graph.initializers.at("weight").to_double()[3] == 4);
  CHECK(read(model({{"location", "weights/w.bin"}, {"offset", "48"}}), home)
            .graph.initializers.count("weight") == 1);

  refuse(ErrorCode::kInvalidArgument, {"\"weight\"", "weights/w.bin", "from memory"}, good);
  refuse(ErrorCode::kInvalidGraph, {"\"weight\"", "16 bytes at offset 49", "64 bytes"},
         model({{"location", "weights/w.bin"}, {"offset", "49"}}), home);
  refuse(ErrorCode::kInvalidGraph, {"\"weight\"", "offset 18446744073709551615"},
         model({{"location", "weights/w.bin"}, {"offset", "18446744073709551615"}}), home);
  refuse(ErrorCode::kInvalidGraph, {"need 16 bytes", "8 bytes long"},
         model({{"location", "weights/w.bin"}, {"length", "8"}}), home);
  for (const char* number : {"-1", "x", "", "1x", "99999999999999999999999"})
    refuse(ErrorCode::kInvalidGraph, {"offset", "number of bytes"},
           model({{"location", "weights/w.bin"}, {"offset", number}}), home);
  refuse(ErrorCode::kNoSuchFile, {"none.bin", "No such file"}, model({{"location", "none.bin"}}), home);
  refuse(ErrorCode::kInvalidGraph, {"no location"}, model({}), home);
  for (const std::string& location :
       {std::string("../secret.bin"), std::string("weights/../../secret.bin"),
        (folder / "secret.bin").string(), std::string(), std::string("a\0b", 3)})
    refuse(ErrorCode::kInvalidGraph, {"inside the model's folder"}, model({{"location", location}}), home);
  std::filesystem::create_symlink(folder / "secret.bin", home / "link.bin");
  refuse(ErrorCode::kInvalidGraph, {"link to a file outside of it"}, model({{"location", "link.bin"}}), home);
  refuse(ErrorCode::kInvalidGraph, {"is not a file"}, model({{"location", "weights"}}), home);
  REQUIRE(mkfifo((home / "pipe").c_str(), 0600) == 0);
  refuse(ErrorCode::kInvalidGraph, {"is not a file"}, model({{"location", "pipe"}}), home);
}

TEST_CASE("Functions are put in the place of their calls") {
  auto proto = small_model();
  proto.mutable_graph()->clear_node();
  // twice(a; factor) = scale(a) + scale(a), scale(b; factor) = LeakyRelu(b, alpha = factor)
  auto& twice = add_function(proto, "twice", {"a"}, {"sum"});
  twice.add_attribute("factor");
  for (const char* out : {"h", "x"}) {  // "x" is an input of the graph: the names must not clash
    auto& call = add_node(twice, "scale", {"a"}, {out}, "local", "scale");
    auto* attribute = call.add_attribute();
    attribute->set_name("factor");
    attribute->set_ref_attr_name("factor");
    attribute->set_type(onnx::AttributeProto::FLOAT);
  }
  add_node(twice, "Add", {"h", "x"}, {"sum"}, "", "add");
  auto& scale = add_function(proto, "scale", {"b"}, {"c"});
  auto* standard = scale.add_attribute_proto();
  standard->set_name("factor");
  standard->set_type(onnx::AttributeProto::FLOAT);
  standard->set_f(0.25f);
  auto* alpha = add_node(scale, "LeakyRelu", {"b"}, {"c"}, "ai.onnx", "leaky").add_attribute();
  alpha->set_name("alpha");
  alpha->set_ref_attr_name("factor");
  alpha->set_type(onnx::AttributeProto::FLOAT);

  auto* given = add_node(*proto.mutable_graph(), "twice", {"x"}, {"m"}, "local", "first").add_attribute();
  given->set_name("factor");
  given->set_type(onnx::AttributeProto::FLOAT);
  given->set_f(0.5f);
  add_node(*proto.mutable_graph(), "twice", {"m"}, {"y"}, "local", "second");

  const Model model = read(proto);
  REQUIRE(model.graph.nodes.size() == 6);
  std::set<std::string> names, outputs;
  for (const Node& node : model.graph.nodes) {
    CHECK(node.domain.empty());
    names.insert(node.name);
    outputs.insert(node.outputs[0]);
  }
  CHECK(names.size() == 6);
  CHECK(outputs.size() == 6);
  CHECK(model.graph.nodes[0].inputs == std::vector<std::string>{"x"});
  CHECK(model.graph.nodes[0].float_or("alpha", 0) == 0.5f);
  CHECK(model.graph.nodes[1].float_or("alpha", 0) == 0.5f);
  CHECK(model.graph.nodes[2].op_type == "Add");
  CHECK(model.graph.nodes[2].outputs == std::vector<std::string>{"m"});
  CHECK(model.graph.nodes[2].inputs[0] == model.graph.nodes[0].outputs[0]);
  CHECK(model.graph.nodes[2].inputs[1] == model.graph.nodes[1].outputs[0]);
  // The second call passes no factor, so the inner function gets none and uses its own default.
  CHECK(model.graph.nodes[3].float_or("alpha", 0) == 0.25f);
  CHECK(model.graph.nodes[5].outputs == std::vector<std::string>{"y"});
  CHECK(model.opsets == std::map<std::string, int64_t>{{"", 17}});

  SECTION("another version of an operator set is refused") {
    proto.mutable_functions(1)->mutable_opset_import(0)->set_version(18);
    refuse(ErrorCode::kNotImplemented, {"local.scale", "version 18", "17"}, proto);
  }
  SECTION("a function that calls itself is refused") {
    add_node(*proto.mutable_functions(1), "twice", {"b"}, {"d"}, "local");
    refuse(ErrorCode::kInvalidGraph, {"local.twice", "calls itself"}, proto);
  }
  SECTION("too many inputs or unknown attributes are refused") {
    proto.mutable_graph()->mutable_node(0)->add_input("x");
    refuse(ErrorCode::kInvalidGraph, {"node \"first\"", "up to 1 input "}, proto);
    proto.mutable_graph()->mutable_node(0)->mutable_input()->RemoveLast();
    given = proto.mutable_graph()->mutable_node(0)->mutable_attribute(0);
    given->set_name("fctor");
    refuse(ErrorCode::kInvalidGraph, {"node \"first\"", "\"fctor\""}, proto);
  }
  SECTION("a value that the function does not define is refused") {
    proto.mutable_functions(1)->mutable_node(0)->set_input(0, "m");
    refuse(ErrorCode::kInvalidGraph, {"local.scale", "\"m\"", "the function does not define"}, proto);
  }
  SECTION("functions are told apart by their overload") {
    proto.mutable_functions(1)->set_overload("other");
    const Model other = read(proto);  // a call without the overload is one of a custom operator
    CHECK(std::any_of(other.graph.nodes.begin(), other.graph.nodes.end(),
                      [](const Node& node) { return node.domain == "local" && node.op_type == "scale"; }));
  }
}

TEST_CASE("Functions with graphs inside, optional inputs and outputs that are inputs are inlined") {
  auto proto = small_model();
  auto& graph = *proto.mutable_graph();
  graph.clear_node();
  add_value(*graph.add_input(), "c", 9, {});
  add_value(*graph.add_output(), "same");
  auto& f = add_function(proto, "choose", {"cond", "a", "low"}, {"r", "a", "spare"});
  auto& branch = add_node(f, "If", {"cond"}, {"r"}, "", "if");
  for (const char* side : {"then_branch", "else_branch"}) {
    auto* attribute = branch.add_attribute();
    attribute->set_name(side);
    attribute->set_type(onnx::AttributeProto::GRAPH);
    auto& inner = *attribute->mutable_g();
    inner.set_name(side);
    add_node(inner, "Clip", {"a", "low"}, {"x"}, "", "clip");  // its output has the name of the model's input
    add_value(*inner.add_output(), "x");
  }
  add_node(f, "Neg", {"a"}, {"spare"}, "", "neg");
  add_node(graph, "choose", {"c", "x"}, {"y", "same"}, "local", "call");
  const Model model = read(proto);
  REQUIRE(model.graph.nodes.size() == 3);  // If, Neg, Identity
  const Node& chosen = model.graph.nodes[0];
  CHECK(chosen.op_type == "If");
  CHECK(chosen.inputs == std::vector<std::string>{"c"});
  std::set<std::string> made;
  for (const char* side : {"then_branch", "else_branch"}) {
    const Graph& inner = *std::get<std::shared_ptr<Graph>>(chosen.attributes.at(side));
    REQUIRE(inner.nodes.size() == 1);
    CHECK(inner.nodes[0].inputs == std::vector<std::string>{"x", ""});  // the caller omitted `low`
    CHECK(inner.nodes[0].outputs[0] != "x");
    CHECK(inner.outputs[0].name == inner.nodes[0].outputs[0]);
    made.insert(inner.nodes[0].outputs[0]);
  }
  CHECK(made.size() == 2);
  bool passed = false;
  for (const Node& node : model.graph.nodes)
    if (node.op_type == "Identity") passed = node.inputs[0] == "x" && node.outputs[0] == "same";
  CHECK(passed);
}

TEST_CASE("Functions that ask for endlessly many nodes are refused") {
  auto proto = small_model();
  proto.mutable_graph()->mutable_node(0)->set_op_type("f0");
  proto.mutable_graph()->mutable_node(0)->set_domain("local");
  for (int i = 0; i < 40; ++i) {
    auto& f = add_function(proto, "f" + std::to_string(i), {"a"}, {"b"});
    const bool last = i == 39;
    for (const auto& [in, out] : {std::pair{"a", "h"}, {"h", "b"}})
      add_node(f, last ? "Relu" : "f" + std::to_string(i + 1), {in}, {out}, last ? "" : "local");
  }
  refuse(ErrorCode::kInvalidGraph, {"its functions would create more than"}, proto);
}

TEST_CASE("Initializers that are listed as inputs are initializers") {
  auto proto = small_model();
  proto.set_ir_version(3);
  add_value(*proto.mutable_graph()->add_input(), "w");
  auto& tensor = add_tensor(proto, "w", 1, {2});
  tensor.add_float_data(1);
  tensor.add_float_data(2);
  const Model model = read(proto);
  CHECK(model.graph.inputs.size() == 1);
  CHECK(model.graph.is_initializer("w"));
  onnx::ModelProto written;
  REQUIRE(written.ParseFromString(write_model(model)));
  CHECK(written.ir_version() == 3);
  CHECK(written.graph().input_size() == 2);  // as that version of the format requires
}

TEST_CASE("Graphs that do not make sense are refused") {
  SECTION("cycle") {
    auto proto = small_model();
    add_node(*proto.mutable_graph(), "Relu", {"b"}, {"a"}, "", "one");
    add_node(*proto.mutable_graph(), "Relu", {"a"}, {"b"}, "", "two");
    refuse(ErrorCode::kInvalidGraph, {"cycle", "\"one\"", "\"two\""}, proto);
  }
  SECTION("missing input") {
    auto proto = small_model();
    proto.mutable_graph()->mutable_node(0)->set_input(0, "gone");
    refuse(ErrorCode::kInvalidGraph, {"\"gone\"", "\"relu\""}, proto);
  }
  SECTION("doubled names") {
    auto proto = small_model();
    add_value(*proto.mutable_graph()->add_input(), "x");
    refuse(ErrorCode::kInvalidGraph, {"two graph inputs", "\"x\""}, proto);
    proto = small_model();
    for (int i = 0; i < 2; ++i) add_tensor(proto, "w", 1, {1}).add_float_data(1);
    refuse(ErrorCode::kInvalidGraph, {"initializer \"w\""}, proto);
    proto = small_model();
    for (int i = 0; i < 2; ++i) {
      auto* attribute = proto.mutable_graph()->mutable_node(0)->add_attribute();
      attribute->set_name("alpha");
      attribute->set_i(1);
      attribute->set_type(onnx::AttributeProto::INT);
    }
    refuse(ErrorCode::kInvalidGraph, {"two attributes \"alpha\""}, proto);
  }
  SECTION("no outputs, no operator, unknown operator set, names that are not text") {
    auto proto = small_model();
    proto.mutable_graph()->clear_output();
    refuse(ErrorCode::kInvalidGraph, {"no outputs"}, proto);
    proto = small_model();
    proto.mutable_graph()->mutable_node(0)->clear_op_type();
    refuse(ErrorCode::kInvalidGraph, {"\"relu\"", "does not name its operator"}, proto);
    proto = small_model();
    proto.mutable_opset_import(0)->set_domain("com.example");
    refuse(ErrorCode::kInvalidGraph, {"\"relu\"", "ai.onnx", "not import"}, proto);
    proto = small_model();
    proto.mutable_graph()->mutable_node(0)->set_name("\xFF\xFE");
    refuse(ErrorCode::kInvalidGraph, {"UTF-8"}, proto);
  }
}

TEST_CASE("Headers that do not belong to a model are refused") {
  auto proto = small_model();
  proto.clear_graph();
  refuse(ErrorCode::kInvalidProtobuf, {"no graph"}, proto);
  proto = small_model();
  proto.clear_opset_import();
  refuse(ErrorCode::kInvalidProtobuf, {"operator set"}, proto);
  proto = small_model();
  proto.clear_ir_version();
  refuse(ErrorCode::kInvalidProtobuf, {"IR version", "found 0"}, proto);
  proto = small_model();
  proto.set_ir_version(99);
  refuse(ErrorCode::kNotImplemented, {"99"}, proto);
  for (const int version : {29, 1000}) {
    proto = small_model();
    proto.mutable_opset_import(0)->set_version(version);
    refuse(ErrorCode::kNotImplemented, {std::to_string(version), "1 to 28"}, proto);
  }
  proto = small_model();
  proto.mutable_opset_import(0)->set_version(-3);
  refuse(ErrorCode::kInvalidGraph, {"-3"}, proto);
  proto = small_model();
  auto* again = proto.add_opset_import();
  again->set_domain("ai.onnx");
  again->set_version(18);
  refuse(ErrorCode::kInvalidGraph, {"twice", "17", "18"}, proto);
}

TEST_CASE("Files that are not models are refused with what they are") {
  Folder folder;
  const auto refuse_file = [&](const std::string& content, ErrorCode code,
                               const std::vector<std::string>& parts) {
    put(folder / "file.onnx", content);
    std::vector<std::string> all = parts;
    all.push_back((folder / "file.onnx").string());
    check_error(code, all, [&] { read_model(folder / "file.onnx"); });
  };
  refuse_file("", ErrorCode::kInvalidProtobuf, {"empty"});
  refuse_file("\x89PNG\r\n\x1a\n0000", ErrorCode::kInvalidProtobuf, {"a PNG image"});
  refuse_file("hello, this is a text", ErrorCode::kInvalidProtobuf, {"21 bytes", "like text"});
  refuse_file(content_of(kFixtures / "mlp_adamw" / "checkpoint"), ErrorCode::kInvalidProtobuf,
              {"a checkpoint file"});
  refuse_file(content_of(kFixtures / "mlp_adamw" / "batches.npz"), ErrorCode::kInvalidProtobuf,
              {"a zip archive"});
  const std::string whole = content_of(kFixtures / "mlp_adamw" / "model.onnx");
  refuse_file(whole.substr(0, whole.size() / 2), ErrorCode::kInvalidProtobuf, {"truncated"});
  check_error(ErrorCode::kNoSuchFile, {"nothing.onnx"}, [&] { read_model(folder / "nothing.onnx"); });
  check_error(ErrorCode::kInvalidArgument, {"a folder"}, [&] { read_model(folder.path()); });
  check_error(ErrorCode::kInvalidArgument, {"null"}, [&] { read_model(nullptr, 5); });
}

TEST_CASE("Graphs that are nested too deep are refused") {
  std::string graph;  // fields by hand: serializing such a depth recurses, too
  const auto field = [](char tag, const std::string& content) {
    std::string out(1, tag);
    size_t length = content.size();
    for (; length >= 128; length >>= 7) out += static_cast<char>(length | 128);
    return out + static_cast<char>(length) + content;
  };
  for (int i = 0; i < 3000; ++i) graph = field(0x0A, field(0x2A, field(0x32, graph)));  // node, attribute, g
  const std::string model = field(0x3A, graph);
  check_error(ErrorCode::kInvalidProtobuf, {"not a complete protobuf message"},
              [&] { read_model(model.data(), model.size()); });
}

TEST_CASE("Cut and damaged models end in an error or in a model") {
  const auto use = [](const std::string& bytes) {
    const Model model = read_model(bytes.data(), bytes.size());
    const std::string written = write_model(model);
    read_model(written.data(), written.size());
  };
  damage(content_of(kFixtures / "mlp_adamw" / "training_model.onnx"), 3000, use);
  damage(content_of(kFixtures / "regressor_mse" / "model.onnx"), 3000, use);
  damage(content_of(kFixtures / "mlp_adamw" / "optimizer_model.onnx"), 5000, use);
  auto proto = small_model();
  auto& f = add_function(proto, "f", {"a"}, {"b"});
  add_node(f, "Relu", {"a"}, {"b"});
  add_node(*proto.mutable_graph(), "f", {"x"}, {"z"}, "local");
  damage(proto.SerializeAsString(), 5000, use);
}

TEST_CASE("A model that cannot be written leaves the old file as it was") {
  Folder folder;
  const Model model = read_model(kFixtures / "encoder" / "model.onnx");
  const Model small = read_model(kFixtures / "mlp_adamw" / "model.onnx");
  write_model(small, folder / "m.onnx");
  const std::string before = content_of(folder / "m.onnx");
  {
    FullDisk full(50'000);
    check_error(ErrorCode::kFail, {"m.onnx", "File too large", "unchanged"},
                [&] { write_model(model, folder / "m.onnx"); });
  }
  CHECK(content_of(folder / "m.onnx") == before);
  CHECK(folder.names() == std::vector<std::string>{"m.onnx"});
  check_error(ErrorCode::kFail, {"none/m.onnx", "there is no folder"},
              [&] { write_model(model, folder / "none/m.onnx"); });
  check_error(ErrorCode::kInvalidArgument, {"a folder"}, [&] { write_model(model, folder.path()); });
  check_error(ErrorCode::kInvalidArgument, {"/dev/null", "special file"},
              [&] { write_model(model, "/dev/null"); });
}

TEST_CASE("A file keeps its permissions and a link stays a link when it is replaced") {
  Folder folder;
  const Model model = read_model(kFixtures / "mlp_adamw" / "model.onnx");
  put(folder / "real.onnx", "old");
  std::filesystem::permissions(folder / "real.onnx", std::filesystem::perms(0640));
  std::filesystem::create_symlink(folder / "real.onnx", folder / "link.onnx");
  write_model(model, folder / "link.onnx");
  CHECK(std::filesystem::is_symlink(folder / "link.onnx"));
  CHECK(std::filesystem::status(folder / "real.onnx").permissions() == std::filesystem::perms(0640));
  CHECK(content_of(folder / "real.onnx") == write_model(model));
}
