#include "artifacts/training_model.h"

#include <map>
#include <set>

#include "graph/onnx_io.h"
#include "infer/value_types.h"
#include "nodes.h"
#include "op/operator.h"
#include "session/inference_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

std::vector<Dim> numbers(const Shape& shape) {
  std::vector<Dim> dims;
  for (const int64_t dim : shape) dims.push_back(Dim{dim, ""});
  return dims;
}

std::vector<Dim> names(const std::string& value, size_t rank) {
  std::vector<Dim> dims;
  for (size_t a = 0; a < rank; ++a) dims.push_back(Dim{-1, concat(value, a)});
  return dims;
}

Tensor random_tensor(const Shape& shape, unsigned seed) {
  Tensor t(DType::kDouble, shape);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  for (double& v : t.elements<double>()) v = normal(random);
  return t;
}

// How much a model declares about the shapes of its inputs.
enum class Stated { kNumbers, kNames, kRank, kNothing };

Model make_model(std::vector<Node> nodes, const std::map<std::string, Tensor>& inputs, Stated stated,
                 int64_t opset, const std::string& loss = "loss") {
  Model model;
  model.opsets = {{"", opset}};
  for (const auto& [name, tensor] : inputs) {
    ValueInfo info{name, tensor.dtype(), std::nullopt};
    if (stated == Stated::kNumbers) info.dims = numbers(tensor.shape());
    if (stated == Stated::kNames) info.dims = names(name, tensor.shape().size());
    if (stated == Stated::kRank) info.dims = std::vector<Dim>(tensor.shape().size());
    model.graph.inputs.push_back(info);
  }
  model.graph.outputs = {ValueInfo{loss, DType::kDouble, std::vector<Dim>{}}};
  model.graph.nodes = std::move(nodes);
  return model;
}

double run_loss(InferenceSession& session, const std::map<std::string, Tensor>& inputs) {
  Strings given;
  std::vector<Value> values;
  for (const auto& [name, value] : inputs) given.push_back(name), values.push_back(value);
  return std::get<Tensor>(session.run(given, values, {"loss"})[0]).elements<double>()[0];
}

// Compares the gradients of all inputs with central differences.
void check_gradients(const std::vector<Node>& nodes, const std::map<std::string, Tensor>& inputs) {
  for (const int64_t opset : {12, 13, 17}) {
    for (const Stated stated : {Stated::kNumbers, Stated::kNames, Stated::kRank, Stated::kNothing}) {
      INFO("opset " << opset << ", stated " << static_cast<int>(stated));
      const Model model = make_model(nodes, inputs, stated, opset);
      GradientRequest request;
      request.loss = "loss";
      for (const auto& [name, value] : inputs) request.trainable.push_back(name);
      InferenceSession forward({}, model), backward({}, build_gradient_model(model, request));
      Strings given;
      std::vector<Value> values;
      for (const auto& [name, value] : inputs) given.push_back(name), values.push_back(value);
      for (const auto& [name, value] : inputs) {
        INFO("gradient of " << name);
        const Tensor gradient = std::get<Tensor>(backward.run(given, values, {name + "_grad"})[0]);
        REQUIRE(gradient.shape() == value.shape());
        for (int64_t i = 0; i < value.size(); ++i) {
          std::map<std::string, Tensor> moved = inputs;
          double side[2];
          for (const int sign : {0, 1}) {
            moved[name] = value.clone();
            moved[name].elements<double>()[i] += sign ? 1e-6 : -1e-6;
            side[sign] = run_loss(forward, moved);
          }
          const double expected = (side[1] - side[0]) / 2e-6;
          CHECK(gradient.elements<double>()[i] == Catch::Approx(expected).epsilon(1e-5).margin(1e-8));
        }
      }
    }
  }
}

const Node kSum = node("ReduceSum", {"y"}, {"loss"}, {{"keepdims", int64_t{0}}});

// y = relu(x · w) with a float weight, for tests that do not run the model.
Model small_model() {
  Model model;
  model.opsets = {{"", 17}};
  model.graph.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{-1, "n"}, Dim{3, ""}}}};
  model.graph.add_initializer("w", Tensor::of<float>({1, 2, 3}));
  model.graph.nodes = {node("Mul", {"x", "w"}, {"product"}, {}, "product"),
                       node("Relu", {"product"}, {"y"}, {}, "relu"), kSum};
  model.graph.outputs = {ValueInfo{"loss", DType::kFloat, std::vector<Dim>{}}};
  return model;
}

GradientRequest train(Strings trainable) {
  GradientRequest request;
  request.trainable = std::move(trainable);
  request.loss = "loss";
  return request;
}

Strings value_names(const std::vector<ValueInfo>& values) {
  Strings out;
  for (const ValueInfo& value : values) out.push_back(value.name);
  return out;
}

size_t count(const Graph& graph, const std::string& type) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& n) { return n.op_type == type; });
}

void check_problems(const Model& model, const GradientRequest& request, const Strings& parts) {
  const std::string found = find_untrainable(model, request);
  INFO(found);
  for (const std::string& part : parts) {
    INFO("expected: " << part);
    CHECK(found.find(part) != std::string::npos);
  }
  CHECK_THROWS_AS(build_training_model(model, request, request.trainable), Error);
}

}  // namespace

TEST_CASE("A value that is read in two places gets the sum of both gradients") {
  check_gradients({node("Tanh", {"x"}, {"a"}, {}, "tanh"), node("Mul", {"a", "x"}, {"b"}),
                   node("Exp", {"a"}, {"c"}), node("Add", {"b", "c"}, {"y"}), kSum},
                  {{"x", random_tensor({3, 2}, 1)}});
}

TEST_CASE("A value that one node reads twice gets both gradients") {
  check_gradients({node("Mul", {"x", "x"}, {"y"}), kSum}, {{"x", random_tensor({3}, 1)}});
  check_gradients({node("Add", {"x", "x"}, {"z"}), node("Mul", {"z", "x"}, {"y"}), kSum},
                  {{"x", random_tensor({3}, 1)}});
}

TEST_CASE("Gradients of broadcast values have the shape of the value") {
  check_gradients({node("Mul", {"x", "w"}, {"y"}), kSum},
                  {{"x", random_tensor({2, 3, 4}, 1)}, {"w", random_tensor({3, 1}, 2)}});
  check_gradients({node("Add", {"x", "w"}, {"z"}), node("Mul", {"z", "w"}, {"y"}), kSum},
                  {{"x", random_tensor({2, 1, 4}, 1)}, {"w", random_tensor({5, 1}, 2)}});
  check_gradients({node("Mul", {"x", "w"}, {"y"}), kSum},
                  {{"x", random_tensor({2, 3}, 1)}, {"w", random_tensor({}, 2)}});
  check_gradients({node("Mul", {"x", "w"}, {"y"}), kSum},
                  {{"x", random_tensor({1, 1}, 1)}, {"w", random_tensor({1}, 2)}});
}

TEST_CASE("Values that share one gradient do not disturb each other") {
  check_gradients({node("Add", {"x", "w"}, {"z"}), node("Mul", {"z", "z"}, {"y"}), kSum},
                  {{"x", random_tensor({2, 3}, 1)}, {"w", random_tensor({2, 3}, 2)}});
}

TEST_CASE("A node of which one output reaches the loss") {
  check_gradients({node("Split", {"x"}, {"first", "second"}, {{"axis", int64_t{0}}}),
                   node("Mul", {"second", "second"}, {"y"}), kSum},
                  {{"x", random_tensor({4, 2}, 1)}});
}

TEST_CASE("A parameter that is the loss itself has gradient 1") {
  check_gradients({node("Identity", {"x"}, {"loss"})}, {{"x", random_tensor({}, 1)}});
}

TEST_CASE("Gradients stop where a value decides and is not computed with") {
  // The mask depends on x, its derivative is zero.
  check_gradients(
      {node("Greater", {"x", "w"}, {"mask"}), node("Cast", {"mask"}, {"factor"}, {{"to", int64_t{11}}}),
       node("Mul", {"factor", "x"}, {"z"}), node("Mul", {"z", "w"}, {"y"}), kSum},
      {{"x", random_tensor({5}, 1)}, {"w", random_tensor({5}, 2)}});
}

TEST_CASE("The training model keeps the contract") {
  Model forward = small_model();
  forward.graph.add_initializer("frozen", Tensor::of<float>({1, 1, 1}));
  forward.graph.add_initializer("constant", Tensor::of<float>({2, 2, 2}));
  forward.graph.nodes = {node("Mul", {"x", "w"}, {"a"}), node("Mul", {"a", "frozen"}, {"b"}),
                         node("Mul", {"b", "constant"}, {"y"}), kSum};
  GradientRequest request = train({"w"});
  request.other_outputs = {"y", "loss"};
  const Model model = build_training_model(forward, request, {"frozen", "w"});
  CHECK(value_names(model.graph.inputs) ==
        Strings{"x", "w", "frozen", "w_grad.accumulation.buffer", "lazy_reset_grad"});
  CHECK(value_names(model.graph.outputs) == Strings{"loss", "y", "w_grad.accumulation.out"});
  CHECK(model.graph.initializers.count("constant") == 1);
  CHECK(model.graph.initializers.count("w") == 0);
  CHECK(model.opsets == std::map<std::string, int64_t>{{"", 17}, {"com.microsoft", 1}});
  const auto accumulation = std::find_if(model.graph.nodes.begin(), model.graph.nodes.end(),
                                         [](const Node& n) { return n.op_type == "InPlaceAccumulatorV2"; });
  REQUIRE(accumulation != model.graph.nodes.end());
  CHECK(accumulation->inputs == Strings{"w_grad.accumulation.buffer", "w_grad", "lazy_reset_grad"});
  CHECK(model.graph.inputs[3].dims == numbers({3}));
  CHECK(write_model(model) == write_model(build_training_model(forward, request, {"frozen", "w"})));
}

TEST_CASE("Parameters may be inputs already") {
  Model forward = small_model();
  forward.graph.remove_initializer("w");
  forward.graph.inputs.insert(forward.graph.inputs.begin(), ValueInfo{"w", DType::kFloat, numbers({3})});
  const Model model = build_training_model(forward, train({"w"}), {"w"});
  CHECK(value_names(model.graph.inputs) ==
        Strings{"x", "w", "w_grad.accumulation.buffer", "lazy_reset_grad"});
}

TEST_CASE("A gradient is taken up before the gradients that come after it") {
  // Its memory is free from then on: the accumulation of w stands before the backward node of the layer
  // below.
  Model forward = small_model();
  forward.graph.add_initializer("v", Tensor::of<float>({1, 2, 3}));
  forward.graph.nodes = {node("Mul", {"x", "v"}, {"a"}, {}, "lower"), node("Tanh", {"a"}, {"b"}, {}, "tanh"),
                         node("Mul", {"b", "w"}, {"y"}, {}, "upper"), kSum};
  const Model model = build_training_model(forward, train({"v", "w"}), {"v", "w"});
  const auto place = [&](const std::string& output) {
    return std::find_if(model.graph.nodes.begin(), model.graph.nodes.end(),
                        [&](const Node& n) { return n.outputs[0] == output; }) -
           model.graph.nodes.begin();
  };
  CHECK(place("w_grad.accumulation.out") < place("a_grad"));
}

TEST_CASE("Gradients that nobody needs are not computed") {
  Model forward = small_model();
  forward.graph.inputs[0].dims = numbers({2, 1, 5, 5});
  forward.graph.remove_initializer("w");
  forward.graph.add_initializer("w", Tensor::of<float>(std::vector<float>(9, 1.0f), {1, 1, 3, 3}));
  forward.graph.nodes = {node("Conv", {"x", "w"}, {"y"}, {}, "conv"), kSum};
  const Model model = build_training_model(forward, train({"w"}), {"w"});
  for (const Node& n : model.graph.nodes)
    if (n.op_type == "ConvGrad") CHECK(n.outputs == Strings{"", "w_grad"});
  CHECK(count(model.graph, "ConvGrad") == 1);
}

TEST_CASE("Names of gradients stay clear of names that are there") {
  Model forward = small_model();
  forward.graph.nodes = {node("Mul", {"x", "w"}, {"w_grad"}), node("Mul", {"w_grad", "w"}, {"y"}), kSum};
  const Model model = build_training_model(forward, train({"w"}), {"w"});
  std::set<std::string> made;
  for (const Node& n : model.graph.nodes)
    for (const std::string& output : n.outputs) CHECK((output.empty() || made.insert(output).second));
  check_error(ErrorCode::kInvalidArgument, {"\"w_grad\""}, [&] {
    Model with_weights = forward;
    build_gradient_model(with_weights, train({"w"}));
  });
}

TEST_CASE("Everything that cannot be trained is named at once") {
  Model model = small_model();
  model.graph.add_initializer("lost", Tensor::of<float>({1}));
  model.graph.add_initializer("whole", Tensor::of<int64_t>({1}));
  model.graph.nodes = {node("Mul", {"x", "w"}, {"a"}), node("Nonsense", {"a"}, {"b"}, {}, "first"),
                       node("Mul", {"b", "w"}, {"c"}),
                       Node{"com.microsoft", "Rubbish", "second", {"c"}, {"y"}, {}}, kSum};
  check_problems(
      model, train({"w", "lost", "whole", "ghost"}),
      {"node \"first\" (Nonsense), domain ai.onnx, opset 17", "node \"second\" (com.microsoft.Rubbish)",
       "parameter \"lost\"", "does not depend on it", "parameter \"whole\"", "int64", "parameter \"ghost\""});
}

ORTRAIN_OPERATOR({.domain = "test", .type = "Plain", .rules = {.shape = shape_like_first}});

TEST_CASE("What has no gradient yet is named only where a gradient would go through it") {
  Model model = small_model();
  model.opsets["test"] = 1;
  model.graph.nodes = {Node{"test", "Plain", "before", {"x"}, {"before"}, {}},
                       node("Mul", {"before", "w"}, {"a"}, {}, "product"),
                       Node{"test", "Plain", "behind", {"a"}, {"y"}, {}}, kSum};
  check_problems(model, train({"w"}), {"node \"behind\" (test.Plain)", "has no gradient yet", "freeze"});
  CHECK(find_untrainable(model, train({"w"})).find("\"before\"") == std::string::npos);
}

TEST_CASE("Parameters that no gradient reaches are found, whatever else is wrong") {
  Model model = small_model();
  for (const char* name : {"lost", "rounded", "compared"})
    model.graph.add_initializer(name, random_tensor({3}, 1));
  model.opsets["test"] = 1;
  model.graph.nodes = {node("Mul", {"x", "w"}, {"a"}),
                       node("Ceil", {"rounded"}, {"b"}),
                       node("Less", {"a", "compared"}, {"c"}),
                       node("Cast", {"c"}, {"d"}, {{"to", int64_t{1}}}),
                       node("Mul", {"b", "d"}, {"e"}),
                       node("Mul", {"e", "a"}, {"f"}),
                       Node{"test", "Plain", "behind", {"f"}, {"y"}, {}},
                       kSum};
  const Strings found = find_unreached(model, train({"w", "lost", "rounded", "compared"}));
  CHECK(std::set<std::string>(found.begin(), found.end()) ==
        std::set<std::string>{"lost", "rounded", "compared"});
  CHECK(find_unreached(model, train({"w"})).empty());
}

TEST_CASE("The gradient of an input is an output and is not accumulated") {
  Model model = small_model();
  model.graph.nodes = {node("Mul", {"x", "w"}, {"y"}), kSum};
  GradientRequest request = train({"w"});
  request.inputs = {"x"};
  CHECK(find_untrainable(model, request) == "");
  const Model made = build_training_model(model, request, {"w"});
  CHECK(value_names(made.graph.outputs) == Strings{"loss", "x_grad", "w_grad.accumulation.out"});
  CHECK(count(made.graph, "InPlaceAccumulatorV2") == 1);
  CHECK_FALSE(made.graph.is_input("x_grad.accumulation.buffer"));

  request.inputs = {"ghost", "w"};
  check_problems(
      model, request,
      {"input \"ghost\": the model has no input with that name", "input \"w\": it is also a parameter"});
}

TEST_CASE("With nothing to train, the training model computes the loss") {
  Model model = small_model();
  model.graph.nodes = {node("Mul", {"x", "w"}, {"y"}), kSum};
  const Model made = build_training_model(model, train({}), {"w"});
  CHECK(value_names(made.graph.inputs) == Strings{"x", "w", "lazy_reset_grad"});
  CHECK(value_names(made.graph.outputs) == Strings{"loss"});
  CHECK(made.graph.nodes.size() == 2);
}

TEST_CASE("A loss must be a scalar") {
  Model model = small_model();
  model.graph.outputs = {ValueInfo{"y", DType::kFloat, std::nullopt}};
  GradientRequest request = train({"w"});
  request.loss = "y";
  check_problems(model, request, {"loss \"y\"", "[n, 3]", "must be a scalar"});
  request.loss = "nothing";
  check_error(ErrorCode::kInvalidArgument, {"\"nothing\""}, [&] { find_untrainable(model, request); });
}

TEST_CASE("Parameters that are none are refused") {
  check_error(ErrorCode::kInvalidArgument, {"\"ghost\"", "\"w\""}, [] {
    build_training_model(small_model(), train({"w"}), {"w", "ghost"});
  });
  check_error(ErrorCode::kInvalidArgument, {"\"w\"", "not among the parameters"},
              [] { build_training_model(small_model(), train({"w"}), {}); });
}

TEST_CASE("Gradients of half precision have the type of the parameter") {
  Model model = small_model();
  model.graph.inputs[0].dtype = DType::kFloat16;
  model.graph.remove_initializer("w");
  model.graph.add_initializer("w", Tensor(DType::kFloat16, {3}));
  model.graph.outputs[0].dtype = DType::kFloat16;
  const Model trained = build_training_model(model, train({"w"}), {"w"});
  CHECK(trained.graph.info("w_grad.accumulation.buffer")->dtype == DType::kFloat16);
}

TEST_CASE("Dimensions of inner values are known by name") {
  Model model = small_model();
  model.graph.inputs = {
      ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{-1, "batch"}, Dim{6, ""}, Dim{4, ""}}}};
  model.graph.add_initializer("shape", Tensor::of<int64_t>({-1, 6, 2, 2}));
  model.graph.add_initializer("heads", Tensor::of<float>(std::vector<float>(4, 1.0f), {2, 2}));
  model.graph.nodes = {node("Reshape", {"x", "shape"}, {"a"}),
                       node("MatMul", {"a", "heads"}, {"b"}),
                       node("Shape", {"x"}, {"s"}),
                       node("Reshape", {"b", "s"}, {"c"}),
                       node("Add", {"c", "x"}, {"d"}),
                       node("Concat", {"d", "d"}, {"e"}, {{"axis", int64_t{0}}})};
  const ValueTypes types(model);
  const Dim batch{-1, "batch"};
  CHECK(types.info("b").dims == std::vector<Dim>{batch, Dim{6, ""}, Dim{2, ""}, Dim{2, ""}});
  CHECK(types.info("d").dims == std::vector<Dim>{batch, Dim{6, ""}, Dim{4, ""}});
  REQUIRE(types.info("e").dims);
  CHECK_FALSE((*types.info("e").dims)[0].known());
  CHECK_FALSE((*types.info("e").dims)[0].same(batch));
  CHECK(types.info("s").dtype == DType::kInt64);
}

TEST_CASE("Rounding does not make dims equal") {
  Model model = small_model();
  model.graph.inputs = {
      ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{1, ""}, Dim{1, ""}, Dim{-1, "h"}, Dim{-1, "w"}}}};
  const std::vector<int64_t> two = {2, 2};
  model.graph.nodes = {node("MaxPool", {"x"}, {"a"}, {{"kernel_shape", two}, {"strides", two}}),
                       node("Concat", {"a", "a"}, {"b"}, {{"axis", int64_t{2}}})};
  const ValueTypes types(model);
  REQUIRE(types.info("b").dims);
  CHECK_FALSE((*types.info("b").dims)[2].same(Dim{-1, "h"}));  // 2 · ⌊h / 2⌋ is not h
}

TEST_CASE("The fixtures' models can be trained, and only float parameters are asked for") {
  for (const std::string& name : kCases) {
    INFO(name);
    const Model training = read_model(kFixtures / name / "training_model.onnx");
    CHECK(count(training.graph, "InPlaceAccumulatorV2") > 0);
    const Model eval = read_model(kFixtures / name / "eval_model.onnx");
    GradientRequest request;
    request.loss = eval.graph.outputs[0].name;
    const std::string suffix = "_grad.accumulation.buffer";
    for (const ValueInfo& input : training.graph.inputs)
      if (input.name.ends_with(suffix))
        request.trainable.push_back(input.name.substr(0, input.name.size() - suffix.size()));
    CHECK(find_untrainable(eval, request) == "");
  }
}
