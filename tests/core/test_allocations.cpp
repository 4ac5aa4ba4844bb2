// In steady state a step allocates nothing. Every call of the malloc family in this process is counted.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "artifacts/training_model.h"
#include "backend/cpu/optimizer/rule.h"
#include "catch.h"
#include "graph/onnx_io.h"
#include "runtime/convert.h"
#include "session/inference_session.h"
#include "session/training_session.h"
#if ORTRAIN_LEGACY
#include "legacy/rank_sum.h"
#include "legacy/training_graph_session.h"
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void count() {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
}

void* allocate(size_t bytes) {
  count();
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}

void* allocate(size_t bytes, std::align_val_t alignment) {
  count();
  const auto a = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t a) { return allocate(bytes, a); }
void* operator new[](size_t bytes, std::align_val_t a) { return allocate(bytes, a); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  count();
  return std::malloc(bytes ? bytes : 1);
}
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace ortrain {

namespace {

// A value of the type and shape that an input declares; named dimensions are 4.
Tensor example(const ValueInfo& info) {
  Shape shape;
  for (const Dim& d : *info.dims) shape.push_back(d.known() ? d.value : 4);
  Tensor t(info.dtype, shape);
  std::memset(t.raw(), 0, t.bytes());
  return t;
}

Tensor half(const Tensor& t) {
  if (t.dtype() != DType::kFloat) return t;
  Tensor out(DType::kFloat16, t.shape());
  from_wide(DType::kFloat16, t.raw(), out.raw(), t.size());
  return out;
}

// The model with float16 in place of float32.
Model in_half(Model model) {
  const auto retype = [](ValueInfo& v) {
    if (v.dtype == DType::kFloat) v.dtype = DType::kFloat16;
  };
  Graph& graph = model.graph;
  for (ValueInfo& v : graph.inputs) retype(v);
  for (ValueInfo& v : graph.outputs) retype(v);
  for (auto& [name, v] : graph.value_info) retype(v);
  for (auto& [name, value] : graph.initializers) value = half(value);
  for (Node& node : graph.nodes) {
    for (auto& [name, attribute] : node.attributes)
      if (auto* tensor = std::get_if<Tensor>(&attribute)) *tensor = half(*tensor);
    if (node.op_type == "Cast" && node.int_or("to", 0) == static_cast<int64_t>(DType::kFloat))
      node.attributes["to"] = static_cast<int64_t>(DType::kFloat16);
  }
  return model;
}

std::shared_ptr<CheckpointState> in_half(const CheckpointState& state) {
  auto out = std::make_shared<CheckpointState>();
  for (const Parameter& p : state.parameters()) out->add_parameter(p.name, p.trainable, half(p.data));
  return out;
}

// The number of allocations in ten steps, after some that are not counted.
int64_t allocations_of(TrainingSession& session) {
  std::vector<Tensor> inputs;
  for (const ValueInfo& info : session.inputs(true)) inputs.push_back(example(info));
  std::vector<Tensor> outputs(session.output_names(true).size());
  std::vector<const Tensor*> given;
  std::vector<Tensor*> places;
  for (const Tensor& t : inputs) given.push_back(&t);
  for (Tensor& t : outputs) places.push_back(&t);
  const auto step = [&] {
    session.train_step(given, places);
    session.optimizer_step();
    session.lazy_reset_grad();
  };
  for (int i = 0; i < 3; ++i) step();
  counting = true;
  for (int i = 0; i < 10; ++i) step();
  counting = false;
  return allocations.exchange(0);
}

}  // namespace

TEST_CASE("a step in steady state allocates nothing") {
  int64_t probe = 0;
  counting = true;
  ::operator delete(
      ::operator new(sizeof(int)));  // the counter works; compilers may leave out `delete new int`
  counting = false;
  probe = allocations.exchange(0);
  REQUIRE(probe == 1);

  const std::map<std::string, std::string> plain,
      mixed = {{"ortrain.mixed_precision", "bf16"}},
      narrow = {{"ortrain.mixed_precision", "bf16"}, {"ortrain.bf16_products", "bf16"}};
  const auto [config, what] = GENERATE_COPY(std::pair(plain, "float32"), std::pair(mixed, "mixed precision"),
                                            std::pair(narrow, "mixed precision, products of bfloat16"));
  for (const char* name : {"mlp_adamw", "lenet_adamw", "resnet_bn", "encoder", "regressor_mse"}) {
    DYNAMIC_SECTION(name << " in " << what) {
      const std::filesystem::path folder = std::filesystem::path(TEST_DATA) / "fixtures" / name;
      SessionOptions options;
      options.config = config;
      TrainingSession session(options, CheckpointState::load(folder / "checkpoint"),
                              read_model(folder / "training_model.onnx"), std::nullopt,
                              read_model(folder / "optimizer_model.onnx"));
      CHECK(allocations_of(session) == 0);
    }
  }
}

// The models have matrices, tables of embeddings, kernels, and vectors. Settings that are 0 by default and
// need a state are 0.5, so that all states are there.
TEST_CASE("nor does one of any optimizer") {
  for (const OptimizerRule* rule : all_optimizers()) {
    Node node;
    node.domain = "ortrain";
    node.op_type = "Optimizer";
    node.attributes["type"] = rule->name;
    for (const StateDeclaration& kept : rule->states)
      if (kept.when != nullptr)
        if (const OptimizerSetting& s = rule->settings[rule->setting(kept.when)]; s.value == 0)
          node.attributes[s.name] = s.is_flag ? Attribute(int64_t{1}) : Attribute(0.5f);
    const bool averages = std::any_of(rule->states.begin(), rule->states.end(),
                                      [](const StateDeclaration& state) { return state.is_evaluated; });
    Model optimizer;
    optimizer.graph.nodes.push_back(node);
    for (const char* name : {"encoder", "lenet_adamw"})
      for (const bool is_half : {false, true}) {
        if (is_half && (averages || std::string(name) == "encoder")) continue;  // rejected in half precision
        DYNAMIC_SECTION(rule->name << " on " << name << (is_half ? " in half precision" : "")) {
          const std::filesystem::path folder = std::filesystem::path(TEST_DATA) / "fixtures" / name;
          std::shared_ptr<CheckpointState> state = CheckpointState::load(folder / "checkpoint");
          Model model = read_model(folder / "training_model.onnx");
          if (is_half) state = in_half(*state), model = in_half(std::move(model));
          TrainingSession session({}, state, std::move(model), std::nullopt, optimizer);
          CHECK(allocations_of(session) == 0);
        }
      }
  }
}

TEST_CASE("neither does a step of a model in half precision") {
  for (const char* name : {"mlp_adamw", "lenet_adamw", "resnet_bn", "regressor_mse"}) {
    DYNAMIC_SECTION(name) {
      const std::filesystem::path folder = std::filesystem::path(TEST_DATA) / "fixtures" / name;
      TrainingSession session({}, in_half(*CheckpointState::load(folder / "checkpoint")),
                              in_half(read_model(folder / "training_model.onnx")), std::nullopt,
                              read_model(folder / "optimizer_model.onnx"));
      CHECK(allocations_of(session) == 0);
    }
  }
}

TEST_CASE("nor one that keeps weights in another order and packs operands") {
  const auto dims_of = [](std::vector<int64_t> shape) {
    std::vector<Dim> dims;
    for (const int64_t dim : shape) dims.push_back(Dim{dim, ""});
    return dims;
  };
  Model forward;
  forward.opsets = {{"", 17}, {"com.microsoft", 1}};
  Graph& g = forward.graph;
  g.inputs = {ValueInfo{"images", DType::kFloat, dims_of({4, 32, 9, 9})},
              ValueInfo{"rows", DType::kFloat, dims_of({600, 48})}};
  g.outputs = {ValueInfo{"loss", DType::kFloat, std::vector<Dim>{}}};
  const Attributes all = {{"keepdims", int64_t{0}}};
  g.nodes = {{"", "Conv", "conv", {"images", "kernel"}, {"a"}, {}},
             {"", "ReduceSum", "sum_a", {"a"}, {"b"}, all},
             {"", "MatMul", "product", {"rows", "weight"}, {"c"}, {}},
             {"", "ReduceSum", "sum_c", {"c"}, {"d"}, all},
             {"", "Add", "both", {"b", "d"}, {"loss"}, {}}};
  g.add_initializer("kernel", Tensor::of(std::vector<float>(32 * 32 * 9, 0.01f), {32, 32, 3, 3}));
  g.add_initializer("weight", Tensor::of(std::vector<float>(48 * 64, 0.02f), {48, 64}));
  auto state = std::make_shared<CheckpointState>();
  for (const char* name : {"kernel", "weight"}) state->add_parameter(name, true, g.initializers.at(name));
  const std::vector<std::string> trained = {"kernel", "weight"};
  TrainingSession session(
      {}, state, build_training_model(forward, {trained, "loss", {}}, trained), std::nullopt,
      read_model(std::filesystem::path(TEST_DATA) / "fixtures" / "lenet_adamw" / "optimizer_model.onnx"));
  CHECK(allocations_of(session) == 0);
}

#if ORTRAIN_LEGACY
namespace {

// The number of allocations in ten steps of one of two processes, and of sums over both.
std::pair<int64_t, int> allocations_of_one_of_two(bool has_part_of_layers) {
  Model forward;
  forward.opsets = {{"", 17}};
  Graph& g = forward.graph;
  g.inputs = {ValueInfo{"x", DType::kFloat, std::vector<Dim>{Dim{8, ""}, Dim{16, ""}}}};
  g.outputs = {ValueInfo{"loss", DType::kFloat, std::vector<Dim>{}}};
  g.nodes = {{"", "MatMul", "first", {"x", "columns"}, {"a"}, {}},
             {"", "Relu", "relu", {"a"}, {"b"}, {}},
             {"", "MatMul", "second", {"b", "rows"}, {"c"}, {}},
             {"", "ReduceMean", "mean", {"c"}, {"loss"}, {{"keepdims", int64_t{0}}}}};
  g.add_initializer("columns", Tensor::of(std::vector<float>(16 * 32, 0.01f), {16, 32}));
  g.add_initializer("rows", Tensor::of(std::vector<float>(32 * 4, 0.02f), {32, 4}));
  TrainingGraphRequest request;
  TrainingParameters& p = request.parameters;
  p.loss_output_name = "loss";
  p.training_optimizer_name = "LambOptimizer";
  for (const char* name : {"columns", "rows"}) {
    p.optimizer_attributes_map[name] = {};
    p.optimizer_int_attributes_map[name] = {};
  }
  p.world_size = 2;
  p.allreduce_post_accumulation = true;
  (has_part_of_layers ? p.horizontal_parallel_size : p.data_parallel_size) = 2;
  TrainingGraph graph = build_training_graph(forward, request);
  const std::vector<std::string> inputs = {"x"}, rates = {"Learning_Rate", "global_gradient_norm"},
                                 outputs = {"loss", "Group_Accumulated_Gradients"}, updates = {graph.updated};
  TrainingGraphSession session({}, std::move(graph));
  RunOptions options;
  options.only_execute_path_to_fetches = true;
  int sums = 0;
  const RankSum sum = [&](std::byte*, size_t, DType, const char*) { ++sums; };
  options.around = [&](const std::function<void()>& kernels) {
    const RankSumScope scope(sum);
    kernels();
  };
  const std::vector<Value> batch = {example(g.inputs[0])},
                           rate = {Tensor::of(std::vector<float>{0.1f}), Tensor::scalar(1.0f)};
  std::vector<Value> made(2, Tensor()), done(1, Tensor());
  const auto step = [&] {
    session.run(inputs, batch, outputs, made, &options);
    session.run(rates, rate, updates, done, &options);
  };
  for (int i = 0; i < 3; ++i) step();
  sums = 0;
  counting = true;
  for (int i = 0; i < 10; ++i) step();
  counting = false;
  return {allocations.exchange(0), sums};
}

}  // namespace

// Both make the same runs, each of which allocates room for names and values.
TEST_CASE("a process that has a part of the layers allocates no more than one that has them whole") {
  const auto [whole, none] = allocations_of_one_of_two(false);
  const auto [part, sums] = allocations_of_one_of_two(true);
  CHECK(none == 0);
  CHECK(sums == 10 * (1 + 2));  // of the block, and of the norms of both weights
  CHECK(part == whole);
}

#endif

}  // namespace ortrain
