// Models in ORT format, and adapters.
#include <cstring>
#include <string>

#include "adapter_generated.h"
#include "graph/onnx_io.h"
#include "infer/typed_model.h"
#include "nodes.h"
#include "op/signature.h"
#include "ort_model_generated.h"
#include "runtime/text_tensor.h"
#include "state/adapter_io.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

ValueInfo value(std::string name, DType dtype, std::vector<Dim> dims) {
  return {std::move(name), dtype, std::move(dims)};
}

// y = (if c then x + b else -x) * [2, 3], with b from outside of the branch.
Model model_with_branches() {
  auto then = std::make_shared<Graph>(), otherwise = std::make_shared<Graph>();
  then->nodes = {node("Add", {"x", "b"}, {"sum"})};
  then->outputs = {value("sum", DType::kFloat, {Dim{2, ""}})};
  otherwise->nodes = {node("Neg", {"x"}, {"less"})};
  otherwise->outputs = {value("less", DType::kFloat, {Dim{2, ""}})};
  Model model;
  model.opsets = {{"", 17}};
  model.producer_name = "tests";
  model.metadata = {{"key", "text"}};
  model.model_version = 3;
  Graph& graph = model.graph;
  graph.inputs = {value("x", DType::kFloat, {Dim{-1, "n"}}), value("c", DType::kBool, {})};
  graph.outputs = {value("y", DType::kFloat, {Dim{-1, "n"}})};
  graph.add_initializer("b", Tensor::of(std::vector<float>{1, 2}));
  graph.nodes = {
      node("Constant", {}, {"factor"}, {{"value", Tensor::of(std::vector<float>{2, 3})}}),
      node("If", {"c"}, {"chosen"},
           {{"then_branch", std::move(then)}, {"else_branch", std::move(otherwise)}}),
      node("Mul", {"chosen", "factor"}, {"y"}),
      node("Clip", {"y", "", "b"}, {"unused"}),
  };
  return model;
}

const ort::InferenceSession& root(const std::string& bytes) {
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  REQUIRE(ort::VerifyInferenceSessionBuffer(verifier));
  return *ort::GetInferenceSession(bytes.data());
}

std::string version(const std::string& bytes) { return root(bytes).ort_version()->str(); }

}  // namespace

TEST_CASE("A model in ORT format has the types, edges and type parameters that readers need") {
  const std::string bytes = write_ort_model(model_with_branches());
  CHECK(version(bytes) == "6");
  const ort::Graph& graph = *root(bytes).model()->graph();
  REQUIRE(graph.nodes()->size() == 3);  // the constant is an initializer
  REQUIRE(graph.initializers()->size() == 2);
  CHECK(graph.initializers()->Get(1)->name()->str() == "factor");
  const ort::Node& branch = *graph.nodes()->Get(0);
  CHECK(branch.since_version() == 16);
  REQUIRE(branch.implicit_inputs()->size() == 2);
  CHECK(branch.implicit_inputs()->Get(0)->str() == "x");
  CHECK(branch.implicit_inputs()->Get(1)->str() == "b");
  const ort::NodeEdge& edges = *graph.node_edges()->Get(1);
  REQUIRE(edges.input_edges()->size() == 1);
  CHECK(edges.input_edges()->Get(0)->node_index() == 0);
  CHECK(edges.input_edges()->Get(0)->dst_arg_index() == 0);
  REQUIRE(edges.output_edges()->size() == 1);
  CHECK(edges.output_edges()->Get(0)->node_index() == 2);
  CHECK(graph.nodes()->Get(2)->input_arg_counts()->size() == 3);
  bool typed = false;
  for (const ort::ValueInfo* info : *graph.node_args())
    if (info->name()->str() == "chosen") typed = info->type()->value_as_tensor_type()->elem_type() == 1;
  CHECK(typed);
  const auto& operators = *root(bytes).kernel_type_str_resolver()->op_kernel_type_str_args();
  std::vector<std::string> ids;
  for (const auto* entry : operators) ids.push_back(entry->op_id()->str());
  CHECK(ids == std::vector<std::string>{":Add:14", ":Clip:13", ":If:16", ":Mul:14", ":Neg:13"});
}

TEST_CASE("A model is the same after it was written in ORT format") {
  const std::string once = write_ort_model(model_with_branches());
  const Model read = read_model(once.data(), once.size());
  CHECK(read.metadata.at("key") == "text");
  CHECK(read.model_version == 3);
  CHECK(read.opset("") == 17);
  CHECK(read.graph.inputs[0] == model_with_branches().graph.inputs[0]);
  CHECK(read.graph.initializers.at("factor").to_double() == std::vector<double>{2, 3});
  CHECK(write_ort_model(read) == once);
}

TEST_CASE("Attributes of every kind, strings, narrow types and sequences survive ORT format") {
  Model model;
  model.opsets = {{"", 21}, {"com.microsoft", 1}};
  Graph& graph = model.graph;
  graph.inputs = {value("x", DType::kFloat, {Dim{2, ""}})};
  graph.inputs[0].is_sequence = true;
  graph.outputs = {value("y", DType::kUndefined, {})};
  graph.outputs[0].dims.reset();
  graph.add_initializer("words", text_tensor({"a", "", "\xC3\xA9"}, {3}));
  graph.add_initializer("eighths", Tensor(DType::kFloat8E5M2, {4}));
  graph.add_initializer("halves", Tensor(DType::kInt4, {3}));
  std::memset(graph.initializers.at("eighths").raw(), 3, 4);
  std::memset(graph.initializers.at("halves").raw(), 1, 2);
  const Attributes attributes = {{"f", 0.5f},
                                 {"i", int64_t{-7}},
                                 {"s", std::string("a\0b", 3)},
                                 {"t", Tensor::of(std::vector<int64_t>{1, 2})},
                                 {"fs", std::vector<float>{1.5f}},
                                 {"is", std::vector<int64_t>{1, -1}},
                                 {"ss", std::vector<std::string>{"a", ""}}};
  graph.nodes = {node("Mine", {"x", "words", "eighths", "halves"}, {"y"}, attributes, "", "com.microsoft")};
  const std::string bytes = write_ort_model(model);
  CHECK(version(bytes) == "4");  // the type parameters are not known
  CHECK(root(bytes).kernel_type_str_resolver() == nullptr);
  const Model read = read_model(bytes.data(), bytes.size());
  CHECK(read.graph.inputs[0] == graph.inputs[0]);
  const Node& mine = read.graph.nodes.at(0);
  CHECK(mine.attributes.size() == attributes.size());
  CHECK(mine.float_or("f", 0) == 0.5f);
  CHECK(mine.int_or("i", 0) == -7);
  CHECK(mine.string_or("s", "") == std::string("a\0b", 3));
  CHECK(std::get<std::vector<float>>(mine.attributes.at("fs")) == std::vector<float>{1.5f});
  CHECK(mine.ints_or("is", {}) == std::vector<int64_t>{1, -1});
  CHECK(std::get<std::vector<std::string>>(mine.attributes.at("ss")) == std::vector<std::string>{"a", ""});
  CHECK(std::get<Tensor>(mine.attributes.at("t")).to_double() == std::vector<double>{1, 2});
  CHECK(text(text_places(read.graph.initializers.at("words"))[2]) == "\xC3\xA9");
  for (const char* name : {"eighths", "halves"}) {
    const Tensor &a = graph.initializers.at(name), &b = read.graph.initializers.at(name);
    CHECK(a.dtype() == b.dtype());
    CHECK(a.shape() == b.shape());
    CHECK(std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
  }
}

TEST_CASE("What ORT format lacks is named") {
  Model model = model_with_branches();
  model.graph.inputs[0].is_optional = true;
  check_error(ErrorCode::kNotImplemented, {"cannot write the model in ORT format", "\"x\"", "optional"},
              [&] { write_ort_model(model); });
  model = model_with_branches();
  model.graph.nodes[2].attributes["type"] = ValueInfo{"", DType::kFloat, std::nullopt};
  check_error(ErrorCode::kNotImplemented, {"node producing \"y\" (Mul)", "\"type\"", "a type"},
              [&] { write_ort_model(model); });
}

TEST_CASE("A model with invalid nodes is not written in ORT format") {
  Model model;
  model.opsets = {{"", 17}};
  model.graph.inputs = {value("x", DType::kFloat, {Dim{3, ""}})};
  model.graph.outputs = {{"y", DType::kUndefined, std::nullopt}};
  model.graph.nodes = {node("SplitToSequence", {"x"}, {"parts"}), node("Neg", {"parts"}, {"y"})};
  check_error(ErrorCode::kInvalidGraph,
              {"ORT format", "invalid inputs", "node producing \"y\" (Neg)", "sequence"},
              [&] { write_ort_model(model); });
}

TEST_CASE("The format that a model is read in can be stated") {
  const std::string in_ort = write_ort_model(model_with_branches()),
                    in_onnx = write_model(model_with_branches());
  const auto read = [](const std::string& bytes, ModelFormat format) {
    return read_model(bytes.data(), bytes.size(), "model", {}, {.format = format});
  };
  CHECK(read(in_ort, ModelFormat::kOrt).graph.nodes.size() == 3);
  CHECK(read(in_onnx, ModelFormat::kOnnx).graph.nodes.size() == 4);
  check_error(ErrorCode::kFail, {"ORTM", "ONNX model"}, [&] { read(in_onnx, ModelFormat::kOrt); });
  check_error(ErrorCode::kInvalidProtobuf, {"expected an ONNX model", "ORT format"},
              [&] { read(in_ort, ModelFormat::kOnnx); });
}

TEST_CASE("Versions of ORT format that are not known are refused") {
  std::string bytes = write_ort_model(model_with_branches());
  const size_t at = reinterpret_cast<const char*>(root(bytes).ort_version()->data()) - bytes.data();
  const auto read = [&] { read_model(bytes.data(), bytes.size()); };
  bytes[at] = '7';
  check_error(ErrorCode::kNotImplemented, {"version 7", "up to 6"}, read);
  bytes[at] = 'x';
  check_error(ErrorCode::kFail, {"version", "\"x\""}, read);
  bytes[at] = '5';
  CHECK_NOTHROW(read());
}

TEST_CASE("A damaged model in ORT format is an error, wherever it is damaged") {
  const std::string whole = write_ort_model(model_with_branches());
  size_t errors = 0;
  const auto try_to_read = [&](const std::string& bytes) {
    // A copy of exactly that size, at an address that suits nothing.
    const auto copy = std::make_unique<char[]>(bytes.size() + 1);
    std::memcpy(copy.get() + 1, bytes.data(), bytes.size());
    try {
      read_model(copy.get() + 1, bytes.size());
    } catch (const Error&) {
      ++errors;
    }
  };
  for (size_t length = 0; length < whole.size(); ++length) {
    const size_t before = errors;
    try_to_read(whole.substr(0, length));
    REQUIRE(errors == before + 1);
  }
  for (size_t at = 0; at < whole.size(); ++at)
    for (const int change : {0x01, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      try_to_read(damaged);
    }
  check_error(ErrorCode::kFail, {"truncated or damaged"},
              [&] { read_model(whole.data(), whole.size() - 8); });
}

TEST_CASE("Tensors in ORT format cannot share their data") {
  flatbuffers::FlatBufferBuilder b;
  const std::vector<uint8_t> data(4096);
  const auto shared = b.CreateVector(data);
  std::vector<flatbuffers::Offset<ort::Tensor>> tensors;
  for (int i = 0; i < 100; ++i) {
    const auto name = b.CreateString(std::to_string(i));
    tensors.push_back(ort::CreateTensor(b, name, 0, b.CreateVector(std::vector<int64_t>{4096}), 2, shared));
  }
  const auto graph = ort::CreateGraph(b, b.CreateVector(tensors));
  const auto model = ort::CreateModel(b, 8, 0, 0, 0, 0, 0, 0, graph);
  b.Finish(ort::CreateInferenceSession(b, b.CreateString("6"), model), ort::InferenceSessionIdentifier());
  check_error(ErrorCode::kFail, {"more bytes than the file"},
              [&] { read_model(b.GetBufferPointer(), b.GetSize()); });
}

TEST_CASE("Every operator of ONNX has the version that a model's opset gives it") {
  const auto since = [](const char* type, int64_t opset) {
    const auto version = onnx_version("", type, opset);
    return version ? version->since : 0;
  };
  CHECK(since("Add", 13) == 13);
  CHECK(since("Add", 12) == 7);
  CHECK(since("Add", 28) == 14);
  CHECK(since("LayerNormalization", 16) == 0);
  CHECK(since("Nothing", 16) == 0);
  const auto parameters = type_parameters("T i0 i1 o0, V i12");
  REQUIRE(parameters.size() == 2);
  CHECK(parameters[0].name == "T");
  CHECK(parameters[0].places == std::vector<std::pair<bool, uint32_t>>{{false, 0}, {false, 1}, {true, 0}});
  CHECK(parameters[1].places == std::vector<std::pair<bool, uint32_t>>{{false, 12}});
  CHECK(inputs_by_parameter(node("Concat", {"a", "b", "c"}, {"y"}), 17) == std::vector<int32_t>{3});
  CHECK(inputs_by_parameter(node("Loop", {"m", "c", "v", "w"}, {"y"}), 17) == std::vector<int32_t>{1, 1, 2});
  CHECK(inputs_by_parameter(node("Unheard", {"a", "b"}, {"y"}), 17) == std::vector<int32_t>{1, 1});
}

namespace {

Adapter small_adapter() {
  return {7, 2, {{"w", Tensor::of(std::vector<float>{1, 2, 3})}, {"flags", Tensor(DType::kBool, {0})}}};
}

}  // namespace

TEST_CASE("An adapter is the same after it was written") {
  Folder folder;
  write_adapter(small_adapter(), folder / "a.onnx_adapter");
  const Adapter read = read_adapter(folder / "a.onnx_adapter");
  CHECK(read.version == 7);
  CHECK(read.model_version == 2);
  REQUIRE(read.parameters.size() == 2);
  CHECK(read.parameters[0].first == "w");
  CHECK(read.parameters[0].second.to_double() == std::vector<double>{1, 2, 3});
  CHECK(read.parameters[1].second.shape() == Shape{0});
  CHECK(write_adapter(read) == write_adapter(small_adapter()));
}

TEST_CASE("What cannot be in an adapter is named") {
  Adapter adapter = small_adapter();
  adapter.parameters.emplace_back("w", Tensor::scalar(1.f));
  check_error(ErrorCode::kInvalidArgument, {"two parameters", "\"w\""}, [&] { write_adapter(adapter); });
  adapter.parameters.back() = {"text", text_tensor({"a"}, {1})};
  check_error(ErrorCode::kInvalidArgument, {"\"text\"", "strings"}, [&] { write_adapter(adapter); });
  check_error(ErrorCode::kNoSuchFile, {"ghost"}, [] { read_adapter("ghost"); });
  const std::string text = "this is no adapter at all";
  check_error(ErrorCode::kFail, {"TORT", "like text"}, [&] { read_adapter(text.data(), text.size()); });
}

TEST_CASE("A damaged adapter is an error, wherever it is damaged") {
  const std::string whole = write_adapter(small_adapter());
  const auto refused = [](const std::string& bytes) {
    const auto copy = std::make_unique<char[]>(bytes.size() + 1);
    std::memcpy(copy.get() + 1, bytes.data(), bytes.size());
    try {
      read_adapter(copy.get() + 1, bytes.size());
    } catch (const Error&) {
      return true;
    }
    return false;
  };
  // The last bytes are padding, which nothing reads.
  for (size_t length = 0; length + 8 < whole.size(); ++length) REQUIRE(refused(whole.substr(0, length)));
  for (size_t at = 0; at < whole.size(); ++at)
    for (const int change : {0x01, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      refused(damaged);
    }
}

TEST_CASE("Parameters of an adapter cannot share their data, and have to fit it") {
  const auto with = [](std::vector<int64_t> dims, int32_t dtype, int count) {
    flatbuffers::FlatBufferBuilder b;
    const auto data = b.CreateVector(std::vector<uint8_t>(1000));
    std::vector<flatbuffers::Offset<adapter::Parameter>> all;
    for (int i = 0; i < count; ++i)
      all.push_back(
          adapter::CreateParameter(b, b.CreateString(std::to_string(i)), b.CreateVector(dims), dtype, data));
    b.Finish(adapter::CreateAdapter(b, 1, 0, 0, b.CreateVector(all)), adapter::AdapterIdentifier());
    return std::string(reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize());
  };
  const auto refuse = [](ErrorCode code, const std::vector<std::string>& parts, const std::string& bytes) {
    check_error(code, parts, [&] { read_adapter(bytes.data(), bytes.size()); });
  };
  CHECK(read_adapter(with({10, 100}, 2, 1).data(), with({10, 100}, 2, 1).size()).parameters.size() == 1);
  refuse(ErrorCode::kFail, {"shared"}, with({1000}, 2, 20));
  refuse(ErrorCode::kFail, {"1000 bytes", "float32[300]"}, with({300}, 1, 1));
  refuse(ErrorCode::kFail, {"-1"}, with({-1, -1000}, 2, 1));
  refuse(ErrorCode::kFail, {"do not fit"}, with({int64_t{1} << 62, 4}, 2, 1));
  refuse(ErrorCode::kNotImplemented, {"string"}, with({125}, 8, 1));
  refuse(ErrorCode::kNotImplemented, {"type"}, with({1000}, 99, 1));
}
