// Parameters stored in the order that their readers prefer: what uses it, and what is unaffected by it.
#include <cstring>
#include <random>

#include "artifacts/training_model.h"
#include "graph/onnx_io.h"
#include "session/parameter_layouts.h"
#include "session/training_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

Tensor numbers(const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  Tensor t(DType::kFloat, shape);
  for (float& v : t.elements<float>()) v = static_cast<float>(random() % 2001) / 20000 - 0.05f;
  return t;
}

// x → Conv three → Relu → Conv point → Relu → Conv read → sum of squares, plus the sum of the weights `read`.
struct Network {
  Model forward, training;
  std::vector<std::pair<std::string, Shape>> parameters = {
      {"three", {64, 32, 3, 3}}, {"point", {32, 64, 1, 1}}, {"read", {32, 32, 3, 3}}};

  Network() {
    forward.opsets = {{"", 17}, {"com.microsoft", 1}};
    Graph& g = forward.graph;
    g.inputs = {ValueInfo{"x", DType::kFloat,
                          std::vector<Dim>{Dim{-1, "batch"}, Dim{32, ""}, Dim{9, ""}, Dim{9, ""}}}};
    g.outputs = {ValueInfo{"loss", DType::kFloat, std::vector<Dim>{}}};
    const Attributes all = {{"keepdims", int64_t{0}}};
    g.nodes = {
        {"", "Conv", "c1", {"x", "three"}, {"a"}, {}}, {"", "Relu", "r1", {"a"}, {"b"}, {}},
        {"", "Conv", "c2", {"b", "point"}, {"c"}, {}}, {"", "Relu", "r2", {"c"}, {"d"}, {}},
        {"", "Conv", "c3", {"d", "read"}, {"e"}, {}},  {"", "Mul", "square", {"e", "e"}, {"f"}, {}},
        {"", "ReduceSum", "sum", {"f"}, {"g"}, all},   {"", "ReduceSum", "weights", {"read"}, {"h"}, all},
        {"", "Add", "both", {"g", "h"}, {"loss"}, {}}};
    std::vector<std::string> names;
    for (const auto& [name, shape] : parameters) {
      g.add_initializer(name, numbers(shape, static_cast<unsigned>(names.size())));
      names.push_back(name);
    }
    training = build_training_model(forward, {names, "loss", {}}, names);
  }
  std::shared_ptr<CheckpointState> state() const {
    auto made = std::make_shared<CheckpointState>();
    for (const auto& [name, shape] : parameters)
      made->add_parameter(name, true, forward.graph.initializers.at(name));
    return made;
  }
  std::unique_ptr<TrainingSession> session(const std::shared_ptr<CheckpointState>& state, bool keep) const {
    SessionOptions options;
    options.intra_op_threads = 2;
    if (!keep) options.config["ortrain.disable_pass.keep_convolution_weights"] = "1";
    return std::make_unique<TrainingSession>(options, state, training, std::nullopt,
                                             read_model(kFixtures / "lenet_adamw/optimizer_model.onnx"));
  }
};

float step(TrainingSession& session, int64_t batch, unsigned seed) {
  const Tensor x = numbers({batch, 32, 9, 9}, seed);
  std::vector<Tensor> outputs(session.output_names(true).size());
  const Tensor* inputs[] = {&x};
  std::vector<Tensor*> places;
  for (Tensor& t : outputs) places.push_back(&t);
  session.train_step(inputs, places);
  session.optimizer_step();
  session.lazy_reset_grad();
  return *outputs[0].data<float>();
}

// All values of a state in row-major order.
std::string bits_of(const CheckpointState& state) {
  std::string bits;
  const auto keep = [&](const Tensor& t) { bits.append(reinterpret_cast<const char*>(t.raw()), t.bytes()); };
  for (const Parameter& p : state.parameters()) {
    keep(p.row_major(p.data));
    keep(p.row_major(p.gradient));
    for (const Tensor& m : p.moments) keep(p.row_major(m));
  }
  return bits;
}

// An order that reverses the elements.
struct Reversed : Layout {
  explicit Reversed(int64_t count) : count(count) {}
  size_t bytes() const override { return bytes_of(DType::kFloat, count); }
  bool equals(const Layout& other) const override { return dynamic_cast<const Reversed*>(&other) != nullptr; }
  bool dense() const override { return true; }
  Kernel to_plain(Slot from, Slot to) const override {
    return [=, count = count](const Frame& f) {
      std::reverse_copy(f.at<float>(from), f.at<float>(from) + count, f.at<float>(to));
    };
  }
  Kernel from_plain(Slot from, Slot to) const override { return to_plain(from, to); }
  int64_t count;
};

}  // namespace

TEST_CASE("What nothing but convolutions reads is kept in their order") {
  const Network network;
  const auto state = network.state();
  const auto layouts = parameter_layouts(*state, network.training, nullptr);
  CHECK(!layouts.contains("read"));
  CHECK(!layouts.contains("point"));  // the order of windows of one element is the row-major one
  CHECK(layouts.contains("three"));
  for (const auto& [name, layout] : layouts) {
    CHECK(layout->dense());
    CHECK(layout->bytes() == state->parameter(name).data.bytes());
  }
  // The eval model matters too, and so does a model whose output is a weight.
  Model reading = network.training;
  reading.graph.nodes.push_back({"", "ReduceSum", "more", {"three"}, {"z"}, {}});
  CHECK(!parameter_layouts(*state, network.training, &reading).contains("three"));
  Model giving = network.training;
  giving.graph.outputs.push_back(ValueInfo{"three", DType::kFloat, std::nullopt});
  CHECK(!parameter_layouts(*state, giving, nullptr).contains("three"));
}

TEST_CASE("Training with weights in the order of convolutions changes no bit") {
  const Network network;
  const auto kept = network.state(), plain = network.state();
  const auto a = network.session(kept, true), b = network.session(plain, false);
  for (unsigned i = 0; i < 4; ++i) {
    const int64_t batch = i % 2 ? 3 : 8;
    CHECK(step(*a, batch, 100 + i) == step(*b, batch, 100 + i));
    CHECK(bits_of(*kept) == bits_of(*plain));
  }
  for (const Parameter& p : plain->parameters()) CHECK(p.layout == nullptr);
  const Parameter& three = kept->parameter("three");
  REQUIRE(three.layout != nullptr);
  CHECK(std::memcmp(three.data.raw(), plain->parameter("three").data.raw(), three.data.bytes()) != 0);

  // What is read and written from outside.
  const Folder folder;
  kept->save(folder / "kept", true);
  plain->save(folder / "plain", true);
  CHECK(content_of(folder / "kept") == content_of(folder / "plain"));
  const auto loaded = CheckpointState::load(folder / "kept");
  const auto again = network.session(loaded, true);
  CHECK(step(*again, 8, 7) == step(*b, 8, 7));
  step(*a, 8, 7);
  CHECK(bits_of(*loaded) == bits_of(*plain));
  Tensor buffer(DType::kFloat, {kept->parameters_size(true)}), other(DType::kFloat, buffer.shape());
  kept->copy_to_buffer(buffer, true);
  plain->copy_to_buffer(other, true);
  CHECK(std::memcmp(buffer.raw(), other.raw(), buffer.bytes()) == 0);
  for (float& v : buffer.elements<float>()) v *= 0.5f;
  kept->copy_from_buffer(buffer, true);
  plain->copy_from_buffer(buffer, true);
  kept->update_parameter("point", numbers({32, 64, 1, 1}, 77));
  plain->update_parameter("point", numbers({32, 64, 1, 1}, 77));
  CHECK(bits_of(*kept) == bits_of(*plain));
  CHECK(step(*a, 5, 9) == step(*b, 5, 9));
  CHECK(bits_of(*kept) == bits_of(*plain));
}

TEST_CASE("A parameter keeps an order only as long as every session of its state can take it") {
  const Network network;
  const auto state = network.state(), plain = network.state();
  auto session = network.session(state, true);
  const auto alone = network.session(plain, false);
  CHECK(step(*session, 8, 1) == step(*alone, 8, 1));
  const uint64_t version = state->layouts_version();
  session.reset();
  session = network.session(state, true);
  CHECK(state->layouts_version() == version);
  CHECK(step(*session, 8, 2) == step(*alone, 8, 2));
  for (const bool keep : {false, true}) {
    session.reset();
    session = network.session(state, keep);
    for (const Parameter& p : state->parameters()) CHECK(p.layout == nullptr);
    CHECK(step(*session, 8, 3) == step(*alone, 8, 3));
  }
  CHECK(bits_of(*state) == bits_of(*plain));
}

TEST_CASE("A state belongs to one training session at a time") {
  const Network network;
  const auto state = network.state();
  auto session = network.session(state, true);
  CHECK_THROWS_AS(network.session(state, true), Error);
  step(*session, 8, 1);  // the first one goes on
  session.reset();
  session = network.session(state, true);
  step(*session, 8, 2);
}

TEST_CASE("The values of a state are the same in any order") {
  const auto state = std::make_shared<CheckpointState>();
  state->add_parameter("w", true, numbers({3, 5}, 1));
  state->add_parameter("fixed", false, numbers({4}, 2));
  state->make_arenas();
  state->make_moments(2);
  const Parameter& w = state->parameter("w");
  for (int64_t i = 0; i < 15; ++i) {
    w.gradient.data<float>()[i] = static_cast<float>(i);
    w.moments[1].data<float>()[i] = static_cast<float>(-i);
  }
  const std::string before = bits_of(*state);
  const float first = w.data.data<float>()[0];
  state->set_layouts({{"w", std::make_shared<Reversed>(15)}});
  CHECK(w.data.data<float>()[14] == first);
  CHECK(w.gradient.data<float>()[0] == 14);
  CHECK(w.moments[1].data<float>()[0] == -14);
  CHECK(bits_of(*state) == before);
  CHECK(state->layouts_version() == 1);
  state->set_layouts({{"w", std::make_shared<Reversed>(15)}});  // nothing to do
  CHECK(state->layouts_version() == 1);
  state->set_layouts({});
  CHECK(w.data.data<float>()[0] == first);
  CHECK(bits_of(*state) == before);
  state->set_layouts({{"w", std::make_shared<Reversed>(15)}});  // too late
  CHECK(w.data.data<float>()[0] == first);
}
