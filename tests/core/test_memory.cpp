// The memory of a Program: the block for intermediate values, compared with the minimum that they need.
#include <cstring>
#include <fstream>
#include <random>
#include <regex>

#include "artifacts/training_model.h"
#include "graph/onnx_io.h"
#include "passes/pass.h"
#include "program/guarded_arena.h"
#include "program/memory_plan.h"
#include "program/program.h"
#include "program/recompute.h"
#include "runtime/threads.h"
#include "session/training_session.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

constexpr std::string_view kBuffer = "_grad.accumulation.buffer";
constexpr int kThreads = 2;
const std::string kEarly = "ortrain.disable_pass.schedule_weight_gradients";

// A training model with everything that a Program of it is compiled from.
struct Training {
  std::shared_ptr<CheckpointState> state;
  Model model;
  ProgramRequest request;

  Training(Model given, std::shared_ptr<CheckpointState> parameters, int64_t batch, bool overwrite,
           const std::map<std::string, std::string>& config = {})
      : state(std::move(parameters)), model(std::move(given)) {
    run_passes(model, PassPhase::kSession, config);
    state->make_arenas();
    request.graph = &model.graph;
    request.opsets = &model.opsets;
    for (const ValueInfo& info : model.graph.inputs) {
      if (info.name == "lazy_reset_grad") {
        request.constants[info.name] = Tensor(DType::kBool, {1});
        *request.constants[info.name].data<bool>() = overwrite;
      } else if (info.name.ends_with(kBuffer)) {
        const std::string name = info.name.substr(0, info.name.size() - kBuffer.size());
        request.states[info.name] = state->parameter(name).gradient;
      } else if (state->has_parameter(info.name)) {
        request.states[info.name] = state->parameter(info.name).data;
      } else {
        Shape shape;
        for (const Dim& d : *info.dims) shape.push_back(d.known() ? d.value : batch);
        request.inputs.push_back(info.name);
        request.example_inputs.emplace_back(info.dtype, shape);
      }
    }
    for (const ValueInfo& info : model.graph.outputs)
      if (!info.name.ends_with("_grad.accumulation.out")) request.outputs.push_back(info.name);
  }
  Training(const std::filesystem::path& folder, int64_t batch, bool overwrite,
           const std::map<std::string, std::string>& config = {})
      : Training(read_model(folder / "training_model.onnx"), CheckpointState::load(folder / "checkpoint"),
                 batch, overwrite, config) {}

  size_t live() const { return Program(request).memory().live; }
};

// The training model of x [batch, 8] → MatMul → Gelu → MatMul → sum of squares, with `wide` hidden units.
Training wide_layer(int64_t wide, const std::map<std::string, std::string>& config) {
  Model model;
  model.opsets = {{"", 17}, {"com.microsoft", 1}};
  Graph& g = model.graph;
  g.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{-1, "batch"}, Dim{8, ""}}}};
  g.outputs = {ValueInfo{"loss", DType::kFloat, std::vector<Dim>{}}};
  g.nodes = {{"", "MatMul", "up", {"x", "up.weight"}, {"h"}, {}},
             {"com.microsoft", "Gelu", "gelu", {"h"}, {"a"}, {}},
             {"", "MatMul", "down", {"a", "down.weight"}, {"y"}, {}},
             {"", "Mul", "square", {"y", "y"}, {"s"}, {}},
             {"", "ReduceSum", "sum", {"s"}, {"loss"}, {{"keepdims", int64_t{0}}}}};
  auto state = std::make_shared<CheckpointState>();
  for (const auto& [name, shape] :
       {std::pair("up.weight", Shape{8, wide}), {"down.weight", Shape{wide, 8}}}) {
    Tensor values(DType::kFloat, shape);
    std::memset(values.raw(), 0, values.bytes());
    g.add_initializer(name, values);
    state->add_parameter(name, true, values);
  }
  const std::vector<std::string> parameters = {"up.weight", "down.weight"};
  return {build_training_model(model, {parameters, "loss", {}}, parameters), state, 64, true, config};
}

// Blocks of convolution, batch normalization in training, ReLU and dropout, then the sum of squares:
// everything that cannot run twice, with channel counts that do not fill vectors.
struct Blocks {
  Model model;
  std::vector<std::string> trainable, parameters;
  std::vector<Tensor> values;

  explicit Blocks(int count) {
    model.opsets = {{"", 17}, {"com.microsoft", 1}};
    Graph& g = model.graph;
    g.inputs = {ValueInfo{"x", DType::kFloat,
                          std::vector<Dim>{Dim{-1, "batch"}, Dim{5, ""}, Dim{8, ""}, Dim{8, ""}}}};
    g.outputs = {ValueInfo{"loss", DType::kFloat, std::vector<Dim>{}}};
    g.add_initializer("ratio", Tensor::scalar<float>(0.3f));
    Tensor yes(DType::kBool, {});
    *yes.data<bool>() = true;
    g.add_initializer("training", yes);
    std::string x = "x";
    for (int i = 0; i < count; ++i) {
      const std::string n = std::to_string(i) + ".";
      const int64_t channels = i == 0 ? 5 : 20;
      add(n + "w", {20, channels, 3, 3}, true, 0.1);
      add(n + "scale", {20}, true, 1);
      add(n + "shift", {20}, true, 0.5);
      add(n + "mean", {20}, false, 0.2);
      add(n + "variance", {20}, false, 1);
      g.nodes.push_back(
          {"", "Conv", n + "conv", {x, n + "w"}, {n + "c"}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}});
      g.nodes.push_back({"",
                         "BatchNormalization",
                         n + "bn",
                         {n + "c", n + "scale", n + "shift", n + "mean", n + "variance"},
                         {n + "n", n + "new_mean", n + "new_variance"},
                         {{"training_mode", int64_t{1}}}});
      g.nodes.push_back({"", "Relu", n + "relu", {n + "n"}, {n + "r"}, {}});
      g.nodes.push_back({"",
                         "Dropout",
                         n + "dropout",
                         {n + "r", "ratio", "training"},
                         {n + "d"},
                         {{"seed", int64_t{i + 1}}}});
      x = n + "d";
    }
    g.nodes.push_back({"", "Mul", "square", {x, x}, {"s"}, {}});
    g.nodes.push_back({"", "ReduceSum", "sum", {"s"}, {"loss"}, {{"keepdims", int64_t{0}}}});
  }
  void add(const std::string& name, const Shape& shape, bool train, double around) {
    Tensor t(DType::kFloat, shape);
    std::mt19937 random(static_cast<unsigned>(parameters.size()));
    for (float& v : t.elements<float>())
      v = static_cast<float>(around * (1 + (static_cast<double>(random() % 1000) - 500) / 1000)) *
          (around < 0.2 && random() % 2 ? -1.f : 1.f);
    model.graph.add_initializer(name, t);
    parameters.push_back(name);
    values.push_back(t);
    if (train) trainable.push_back(name);
  }
  std::shared_ptr<CheckpointState> state() const {
    auto made = std::make_shared<CheckpointState>();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const bool train = std::find(trainable.begin(), trainable.end(), parameters[i]) != trainable.end();
      made->add_parameter(parameters[i], train, values[i]);
    }
    return made;
  }
  Model training() const { return build_training_model(model, {trainable, "loss", {}}, parameters); }
};

// Bits of all results of the steps: losses, parameters, gradients.
std::string train(const Model& model, const std::shared_ptr<CheckpointState>& state, int64_t batch,
                  const std::map<std::string, std::string>& config) {
  SessionOptions options;
  options.config = config;
  options.intra_op_threads = kThreads;
  TrainingSession session(options, state, model, std::nullopt, std::nullopt);
  std::mt19937 random(5);
  std::string bits;
  const auto keep = [&](const Tensor& t) { bits.append(reinterpret_cast<const char*>(t.raw()), t.bytes()); };
  for (int step = 0; step < 3; ++step) {
    if (step != 1) session.lazy_reset_grad();  // the second step adds to the gradients of the first
    std::vector<Tensor> inputs;
    for (const ValueInfo& info : session.inputs(true)) {
      Shape shape;
      for (const Dim& d : *info.dims) shape.push_back(d.known() ? d.value : batch);
      Tensor& t = inputs.emplace_back(info.dtype, shape);
      if (t.dtype() == DType::kFloat)
        for (float& v : t.elements<float>()) v = static_cast<float>(random() % 1000) / 500 - 1;
      else
        for (int64_t& v : t.elements<int64_t>()) v = random() % 2;
    }
    std::vector<Tensor> outputs(session.output_names(true).size());
    std::vector<const Tensor*> given;
    std::vector<Tensor*> places;
    for (const Tensor& t : inputs) given.push_back(&t);
    for (Tensor& t : outputs) places.push_back(&t);
    session.train_step(given, places);
    for (const Tensor& t : outputs) keep(t);
    for (const Parameter& p : state->parameters()) {
      keep(p.data);
      if (!p.trainable) continue;
      keep(p.gradient);
      // Substitute for an optimizer step.
      const float* d = p.gradient.data<float>();
      for (int64_t i = 0; i < p.data.size(); ++i) p.data.data<float>()[i] -= 1e-3f * d[i];
    }
  }
  return bits;
}

// Trains with smaller and smaller budgets until one is rejected, then with the one that the error names.
// Returns the least share of the memory that was reached.
double check_budgets(const std::function<Training(bool)>& make, const Model& model,
                     const std::function<std::shared_ptr<CheckpointState>()>& state, int64_t batch) {
  // The memory of both variants of the step within the budget; 0 and the named budget if one is rejected.
  size_t named = 0;
  const auto memory = [&](size_t budget) -> size_t {
    const ThreadScope scope(kThreads);  // kernels take memory for each thread
    size_t most = 0;
    for (const bool overwrite : {true, false}) {
      Training training = make(overwrite);
      training.request.memory_budget = budget;
      try {
        most = std::max(most, Program(training.request).memory().arena);
      } catch (const Error& error) {
        std::smatch found;
        const std::string message = error.message();
        INFO(message);
        REQUIRE(std::regex_search(message, found, std::regex("at least (\\d+) bytes")));
        named = std::stoul(found[1]);
        return 0;
      }
    }
    return most;
  };
  const size_t whole = memory(0);
  const std::string expected = train(model, state(), batch, {});
  const auto check = [&](size_t budget) {
    CHECK(train(model, state(), batch, {{"ortrain.memory_budget", std::to_string(budget)}}) == expected);
  };
  for (const double share : {1.0, 0.85, 0.7, 0.5, 0.3, 0.01}) {
    const auto budget = static_cast<size_t>(share * static_cast<double>(whole));
    INFO("budget " << budget << " of " << whole);
    if (const size_t needed = memory(budget)) {
      CHECK(needed <= budget);
      check(budget);
      continue;
    }
    CHECK(named > budget);
    CHECK(named <= whole);
    // Each variant names its own least; the other may need more.
    size_t least = named;
    if (memory(least) == 0) least = named;
    CHECK(memory(least) <= least);
    CHECK(memory(least) > 0);
    check(least);
    return static_cast<double>(least) / static_cast<double>(whole);
  }
  FAIL("no budget was refused");
  return 0;
}

void check_plan(const std::vector<MemoryRequest>& requests, double at_most) {
  const MemoryPlan plan = plan_memory(requests);
  REQUIRE(plan.offsets.size() == requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    CHECK(plan.offsets[i] + requests[i].bytes <= plan.bytes);
    for (size_t j = 0; j < i; ++j) {
      if (requests[j].last < requests[i].first || requests[j].first > requests[i].last) continue;
      const bool apart = plan.offsets[i] + requests[i].bytes <= plan.offsets[j] ||
                         plan.offsets[j] + requests[j].bytes <= plan.offsets[i];
      if (!apart) FAIL("pieces " << j << " and " << i << " are in use at once and overlap");
    }
  }
  CHECK(static_cast<double>(plan.bytes) <= at_most * static_cast<double>(most_in_use(requests)));
}

}  // namespace

TEST_CASE("The memory of intermediate values is at most a tenth above what they need at once") {
  for (const std::string& name : kCases)
    for (const int64_t batch : {1, 2, 7, 64})
      for (const bool overwrite : {true, false}) {
        INFO(name << ", batch " << batch << ", gradients overwritten: " << overwrite);
        const Training training(kFixtures / name, batch, overwrite);
        const ProgramMemory memory = Program(training.request).memory();
        CHECK(memory.live > 0);
        CHECK(memory.live <= memory.arena);
        // A few cache lines more if pieces have only a few bytes: each starts a new line, after any guard.
        CHECK(static_cast<double>(memory.arena) <=
              1.1 * static_cast<double>(memory.live) + 4 * 64 + 16 * kGuardBytes);
      }
}

TEST_CASE("The gradient of a parameter is made before that of the layer below") {
  for (const char* off : {"0", "1"}) {
    const Training training = wide_layer(512, {{kEarly, off}, {"ortrain.disable_pass.fuse_product", "1"}});
    std::vector<std::string> made;
    for (const Node& node : training.model.graph.nodes)
      if (node.outputs[0] == "a_grad" || node.outputs[0] == "down.weight_grad")
        made.push_back(node.outputs[0]);
    CHECK(made.size() == 2);
    CHECK(made.front() == (*off == '0' ? "down.weight_grad" : "a_grad"));
  }
  for (const std::string& name : kCases) {
    INFO(name);
    const auto live = [&](const char* off) {
      return Training(kFixtures / name, 32, true, {{kEarly, off}}).live();
    };
    CHECK(live("0") <= live("1"));
  }
}

TEST_CASE("Nodes still come after what they read when gradients are made early") {
  for (const std::string& name : kCases) {
    INFO(name);
    const Training training(kFixtures / name, 4, true);
    const Training as_given(kFixtures / name, 4, true, {{kEarly, "1"}});
    Graph sorted = training.model.graph;
    sorted.sort();  // stable: changes nothing where the order is right
    REQUIRE(sorted.nodes.size() == as_given.model.graph.nodes.size());
    for (size_t i = 0; i < sorted.nodes.size(); ++i)
      CHECK(sorted.nodes[i].outputs == training.model.graph.nodes[i].outputs);
  }
}

// Lines of bytes, first and last step, as Programs of these models had them.
TEST_CASE("The pieces of real models are placed with at most a tenth of waste") {
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(TEST_DATA) / "memory")) {
    INFO(entry.path());
    std::ifstream file(entry.path());
    std::vector<MemoryRequest> requests;
    for (MemoryRequest r{}; file >> r.bytes >> r.first >> r.last;) requests.push_back(r);
    REQUIRE(requests.size() > 20);
    check_plan(requests, 1.1);
  }
}

TEST_CASE("Pieces in use at the same time never share memory") {
  check_plan({}, 1);
  check_plan({{64, 0, 5}}, 1);
  check_plan({{64, 0, 5}, {128, 6, 7}, {64, 6, 6}}, 1);
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<MemoryRequest> requests;
    const int steps = 2 + static_cast<int>(random() % 120);
    for (int i = 0; i < steps; ++i) {
      const int first = static_cast<int>(random() % static_cast<unsigned>(steps));
      requests.push_back({64 * (1 + random() % 200), first, first + static_cast<int>(random() % 30)});
    }
    check_plan(requests, 1.25);
  }
}

TEST_CASE("What is in use at once is counted with the last step of each piece") {
  CHECK(most_in_use({}) == 0);
  CHECK(most_in_use({{10, 0, 2}, {20, 3, 4}}) == 20);
  CHECK(most_in_use({{10, 0, 3}, {20, 3, 4}}) == 30);
  CHECK(most_in_use({{10, 0, 0}, {20, 0, 0}, {5, 1, 9}, {40, 9, 9}}) == 45);
}

TEST_CASE("With recomputation a step keeps to its memory budget and changes no bit") {
  for (const std::string& name : kCases) {
    INFO(name);
    const std::filesystem::path folder = kFixtures / name;
    const auto state = [&] { return CheckpointState::load(folder / "checkpoint"); };
    check_budgets([&](bool overwrite) { return Training(folder, 32, overwrite); },
                  read_model(folder / "training_model.onnx"), state, 32);
  }
}

TEST_CASE("Batch normalization and dropout are recomputed from what they found the first time") {
  const Blocks blocks(8);
  const Model model = blocks.training();
  const double least =
      check_budgets([&](bool overwrite) { return Training(model, blocks.state(), 4, overwrite); }, model,
                    [&] { return blocks.state(); }, 4);
  CHECK(least < 0.7);
}

TEST_CASE("A memory budget that is not a number of bytes is refused") {
  const std::filesystem::path folder = kFixtures / "mlp_adamw";
  for (const char* text :
       {"", "0", "-5", "12X", "K", "1.5G", "99999999999999999999", "99999999999G", "1 M"}) {
    INFO("budget \"" << text << "\"");
    SessionOptions options;
    options.config["ortrain.memory_budget"] = text;
    check_error(ErrorCode::kInvalidArgument, {"ortrain.memory_budget", text, "64M"}, [&] {
      TrainingSession(options, CheckpointState::load(folder / "checkpoint"),
                      read_model(folder / "training_model.onnx"), std::nullopt, std::nullopt);
    });
  }
  SessionOptions options;
  CHECK(memory_budget(options) == 0);
  for (const auto& [text, bytes] : {std::pair<const char*, size_t>{"1234", 1234},
                                    {"5K", 5120},
                                    {"3M", 3u << 20},
                                    {"2G", size_t{2} << 30}}) {
    options.config["ortrain.memory_budget"] = text;
    CHECK(memory_budget(options) == bytes);
  }
  options.config["ortrain.memory_budget"] = "auto";
  CHECK(memory_budget(options) == kAutomaticBudget);
}
