// Segments: what is compiled when a shape depends on a value, and what is not compiled again.
#include <chrono>
#include <deque>
#include <thread>

#include "catch.h"
#include "nodes.h"
#include "program/executor.h"

namespace ortrain {

using test::node;

namespace {

ValueInfo value(const std::string& name) { return {name, DType::kUndefined, std::nullopt}; }

constexpr const char* kOfVariant = "variant";  // an input that is a constant of each variant

struct Places : OutputPlaces {
  std::deque<Tensor> tensors;  // those returned before stay where they are
  const Tensor& place(size_t o, DType dtype, const Shape& shape) override {
    if (tensors.size() <= o) tensors.resize(o + 1);
    if (!tensors[o].defined() || tensors[o].dtype() != dtype || tensors[o].shape() != shape)
      tensors[o] = Tensor(dtype, shape);
    return tensors[o];
  }
};

class Runner {
 public:
  explicit Runner(Graph graph) {
    model_.opsets = {{"", 17}};
    model_.graph = std::move(graph);
    model_.graph.sort();
    std::vector<std::string> inputs, outputs;
    for (const ValueInfo& info : model_.graph.inputs)
      if (info.name != kOfVariant) inputs.push_back(info.name);
    for (const ValueInfo& info : model_.graph.outputs) outputs.push_back(info.name);
    executor_ = std::make_unique<Executor>(
        model_.graph, inputs, outputs,
        ExecutorSettings{&model_, std::make_shared<Arena>(), Precision::kFloat, 0});
  }

  // With a variant whose constant is this number.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs, int variant = 0) {
    std::vector<ValueRef> given;
    for (const Tensor& t : inputs) given.emplace_back(t);
    RunScope scope;
    const std::unordered_map<std::string, Tensor> constants = {
        {kOfVariant, Tensor::of(std::vector<float>{static_cast<float>(variant)})}};
    scope.variant = variant;
    scope.states = &none_;
    scope.constants = &constants;
    scope.number = runs_++;
    scope.terminate = &terminate;
    executor_->run(given, places_, scope);
    return {places_.tensors.begin(), places_.tensors.end()};
  }
  size_t compilations() const { return executor_->compilations(); }
  std::atomic<bool> terminate{false};

 private:
  Model model_;
  std::unordered_map<std::string, Tensor> none_;
  Places places_;
  std::unique_ptr<Executor> executor_;
  uint64_t runs_ = 0;
};

Tensor ints(std::vector<int64_t> values) { return Tensor::of(values); }
Tensor floats(std::vector<float> values) { return Tensor::of(values); }

}  // namespace

TEST_CASE("values of an input that decides a shape are compiled once each") {
  Graph g;
  g.inputs = {value("x"), value("shape")};
  g.nodes = {node("Reshape", {"x", "shape"}, {"r"}), node("Add", {"r", "r"}, {"y"})};
  g.outputs = {value("y")};
  Runner runner(g);
  const Tensor x = floats({1, 2, 3, 4, 5, 6});
  for (int turn = 0; turn < 4; ++turn) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 3}, {3, 2}, {6, 1}}) {
      const Tensor y = runner.run({x, ints(shape)})[0];
      CHECK(y.shape() == shape);
      CHECK(y.to_double()[4] == 10);
    }
    CHECK(runner.compilations() == 3);
  }
}

TEST_CASE("what follows a dynamic operator is compiled once for each shape that it gives") {
  Graph g;
  g.inputs = {value("x")};
  g.add_initializer("minus", ints({-1}));
  g.nodes = {node("Mul", {"x", "x"}, {"q"}),
             node("NonZero", {"q"}, {"where"}),
             node("Transpose", {"where"}, {"places"}),
             node("GatherND", {"q", "places"}, {"chosen"}),
             node("Shape", {"chosen"}, {"size"}),
             node("ConstantOfShape", {"size"}, {"zeros"}),
             node("Add", {"chosen", "zeros"}, {"sum"}),
             node("Reshape", {"sum", "minus"}, {"y"})};
  g.outputs = {value("y")};
  Runner runner(g);
  for (int turn = 0; turn < 3; ++turn) {
    CHECK(runner.run({floats({0, 2, 0, 3})})[0].to_double() == std::vector<double>{4, 9});
    CHECK(runner.run({floats({1, 2, 0, 3})})[0].to_double() == std::vector<double>{1, 4, 9});
    CHECK(runner.run({floats({5, 0, 1, 0})})[0].to_double() == std::vector<double>{25, 1});
    CHECK(runner.run({floats({0, 0, 0, 0})})[0].to_double().empty());
    // Once for the input's shape, and once each for 2, 3 and 0 elements.
    CHECK(runner.compilations() == 4);
  }
}

TEST_CASE("what is the same for all shapes that a dynamic operator gives is compiled once") {
  // x, the selected elements of x, their sum, and then a chain of nodes of a fixed shape.
  Graph g;
  g.inputs = {value("x"), value("w")};
  g.nodes = {node("NonZero", {"x"}, {"where"}), node("Transpose", {"where"}, {"places"}),
             node("GatherND", {"x", "places"}, {"chosen"}),
             node("ReduceSum", {"chosen"}, {"v0"}, {{"keepdims", int64_t{0}}})};
  for (int k = 0; k < 12; ++k)
    g.nodes.push_back(
        node(k % 3 == 2 ? "Mul" : "Add", {"v" + std::to_string(k), "w"}, {"v" + std::to_string(k + 1)}));
  g.outputs = {value("v12"), value("chosen")};
  Runner runner(g);
  const auto expected = [](float v, float w) {
    for (int k = 0; k < 12; ++k) v = k % 3 == 2 ? v * w : v + w;
    return v;
  };
  // The first is whole; the second is split, and its second half serves all others.
  const std::vector<std::vector<float>> given = {
      {0, 2, 0, 3}, {1, 2, 0, 3}, {5, 0, 0, 0}, {0, 0, 0, 0}, {1, 2, 3, 4}};
  const std::vector<size_t> compilations = {2, 4, 5, 6, 7};
  for (int turn = 0; turn < 3; ++turn)
    for (size_t k = 0; k < given.size(); ++k) {
      const float w = 1.f + 0.5f * static_cast<float>(turn);
      const auto outputs = runner.run({floats(given[k]), floats({w, w})});
      float sum = 0, count = 0;
      for (const float v : given[k]) {
        sum += v;
        count += v != 0;
      }
      CHECK(outputs[0].to_double() == std::vector<double>(2, expected(sum, w)));
      CHECK(outputs[1].size() == count);
      CHECK(runner.compilations() == (turn == 0 ? compilations[k] : 7));
    }
}

TEST_CASE("variants share the segments that read none of their constants") {
  Graph g;
  g.inputs = {value("x"), value(kOfVariant)};
  g.nodes = {node("NonZero", {"x"}, {"where"}),
             node("Transpose", {"where"}, {"places"}),
             node("GatherND", {"x", "places"}, {"chosen"}),
             node("Relu", {"chosen"}, {"positive"}),
             node("NonZero", {"positive"}, {"again"}),
             node("Transpose", {"again"}, {"at"}),
             node("GatherND", {"chosen", "at"}, {"rest"}),
             node("Mul", {"rest", kOfVariant}, {"scaled"}),
             node("Add", {"scaled", "scaled"}, {"y"})};
  g.outputs = {value("y")};
  Runner runner(g);
  const Tensor x = floats({0, 2, -1, 3});
  CHECK(runner.run({x}, 1)[0].to_double() == std::vector<double>{4, 6});
  CHECK(runner.compilations() == 3);
  for (int turn = 0; turn < 3; ++turn) {
    // Only the nodes that compute y differ.
    CHECK(runner.run({x}, 5)[0].to_double() == std::vector<double>{20, 30});
    CHECK(runner.run({x}, 1)[0].to_double() == std::vector<double>{4, 6});
    CHECK(runner.compilations() == 4);
  }
  CHECK(runner.run({floats({1, 2, -1, 3})}, 5)[0].to_double() == std::vector<double>{10, 20, 30});
  CHECK(runner.run({floats({1, 2, -1, 3})}, 1)[0].to_double() == std::vector<double>{2, 4, 6});
}

TEST_CASE("no more segments are kept than there is room for, and those in use stay") {
  Graph g;
  g.inputs = {value("x"), value("n")};
  g.nodes = {node("Expand", {"x", "n"}, {"y"})};
  g.outputs = {value("y")};
  Runner runner(g);
  for (int64_t n = 1; n <= 40; ++n) {
    CHECK(runner.run({floats({7}), ints({n})})[0].shape() == Shape{n});
    CHECK(runner.run({floats({7}), ints({1})})[0].shape() == Shape{1});
  }
  CHECK(runner.compilations() == 40);
}

TEST_CASE("an If whose condition follows from shapes is not a separate node") {
  auto yes = std::make_shared<Graph>(), no = std::make_shared<Graph>();
  yes->nodes = {node("Neg", {"x"}, {"a"})};
  yes->outputs = {value("a")};
  no->nodes = {node("Abs", {"x"}, {"b"})};
  no->outputs = {value("b")};
  Graph g;
  g.inputs = {value("x")};
  g.add_initializer("two", ints({2}));
  g.nodes = {node("Shape", {"x"}, {"size"}), node("Equal", {"size", "two"}, {"same"}),
             node("If", {"same"}, {"y"}, {{"then_branch", yes}, {"else_branch", no}})};
  g.outputs = {value("y")};
  Runner runner(g);
  CHECK(runner.run({floats({1, -2})})[0].to_double() == std::vector<double>{-1, 2});
  CHECK(runner.run({floats({1, -2, 3})})[0].to_double() == std::vector<double>{1, 2, 3});
  // One segment for each shape, and none of a branch.
  CHECK(runner.compilations() == 2);
}

TEST_CASE("a loop compiles its body once for each shape that it carries") {
  auto body = std::make_shared<Graph>();
  body->inputs = {value("i"), value("on"), value("v")};
  body->nodes = {node("Identity", {"on"}, {"go"}), node("Concat", {"v", "x"}, {"w"}, {{"axis", int64_t{0}}})};
  body->outputs = {value("go"), value("w")};
  Graph g;
  g.inputs = {value("x"), value("n")};
  g.nodes = {node("Loop", {"n", "", "x"}, {"y"}, {{"body", body}})};
  g.outputs = {value("y")};
  Runner runner(g);
  const auto count = [](int64_t n) {
    Tensor t(DType::kInt64, {});
    *t.data<int64_t>() = n;
    return t;
  };
  CHECK(runner.run({floats({1, 2}), count(20)})[0].size() == 42);
  const size_t compiled = runner.compilations();
  CHECK(runner.run({floats({1, 2}), count(20)})[0].size() == 42);
  CHECK(runner.run({floats({1, 2}), count(0)})[0].size() == 2);
  CHECK(runner.compilations() == compiled);
}

TEST_CASE("a loop without end is ended by the run options, from another thread") {
  auto body = std::make_shared<Graph>();
  body->inputs = {value("i"), value("on"), value("v")};
  body->nodes = {node("Identity", {"on"}, {"go"}), node("Neg", {"v"}, {"w"})};
  body->outputs = {value("go"), value("w")};
  Graph g;
  g.inputs = {value("x")};
  g.nodes = {node("Loop", {"", "", "x"}, {"y"}, {{"body", body}})};
  g.outputs = {value("y")};
  Runner runner(g);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    runner.terminate = true;
  });
  std::string message;
  try {
    runner.run({floats({1})});
  } catch (const Error& e) {
    message = e.message();
  }
  other.join();
  CHECK(message.find("terminated because RunOptions.terminate is set") != std::string::npos);
}

}  // namespace ortrain
