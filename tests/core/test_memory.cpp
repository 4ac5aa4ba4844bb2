// The memory of a Program: the block for intermediate values against what they need at least.
#include <cstring>
#include <fstream>
#include <random>

#include "autodiff/gradient_builder.h"
#include "graph/onnx_io.h"
#include "passes/pass.h"
#include "program/memory_plan.h"
#include "program/program.h"
#include "session/checkpoint_state.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

constexpr std::string_view kBuffer = "_grad.accumulation.buffer";
const std::string kEarly = "ortrain.disable_pass.early_parameter_gradients";

// A training model with everything that a Program of it is compiled from.
struct Training {
  std::shared_ptr<CheckpointState> state;
  Model model;
  ProgramRequest request;

  Training(Model given, std::shared_ptr<CheckpointState> parameters, int64_t batch, bool overwrite,
           const std::map<std::string, std::string>& config = {})
      : state(std::move(parameters)), model(std::move(given)) {
    run_session_passes(model, config);
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
        // A few cache lines more where pieces are of a few bytes: each begins a line of its own.
        CHECK(static_cast<double>(memory.arena) <= 1.1 * static_cast<double>(memory.live) + 4 * 64);
      }
}

TEST_CASE("Gradients of parameters are made early, so that activations are gone sooner") {
  for (const std::string& name : kCases) {
    INFO(name);
    const auto live = [&](const char* off) {
      return Training(kFixtures / name, 32, true, {{kEarly, off}}).live();
    };
    CHECK(live("0") <= live("1"));
  }
  // Input and output of the activation and the gradient of the output need not be there at once.
  const size_t wide = 64 * 512 * sizeof(float);
  const size_t late = wide_layer(512, {{kEarly, "1"}}).live(), early = wide_layer(512, {}).live();
  CHECK(late > 3 * wide);
  CHECK(early + wide <= late);
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
