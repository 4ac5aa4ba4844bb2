// In steady state a step allocates nothing. Every call of malloc's family in this process is counted, except
// those that oneDNN makes for its own bookkeeping while it executes a primitive.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "catch.h"
#include "graph/onnx_io.h"
#include "session/training_session.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void count(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info info;
  if (dladdr(caller, &info) && info.dli_fname && std::strstr(info.dli_fname, "libdnnl")) return;
  ++allocations;
}

void* allocate(size_t bytes, const void* caller) {
  count(caller);
  if (void* p = std::malloc(bytes ? bytes : 1)) return p;
  throw std::bad_alloc();
}

void* allocate(size_t bytes, std::align_val_t alignment, const void* caller) {
  count(caller);
  const auto a = static_cast<size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, __builtin_return_address(0)); }
void* operator new[](size_t bytes) { return allocate(bytes, __builtin_return_address(0)); }
void* operator new(size_t bytes, std::align_val_t a) {
  return allocate(bytes, a, __builtin_return_address(0));
}
void* operator new[](size_t bytes, std::align_val_t a) {
  return allocate(bytes, a, __builtin_return_address(0));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
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

// A value of the type and shape that an input states; a symbol stands for 4.
Tensor example(const ValueInfo& info) {
  Shape shape;
  for (const Dim& d : *info.dims) shape.push_back(d.known() ? d.value : 4);
  Tensor t(info.dtype, shape);
  std::memset(t.raw(), 0, t.bytes());
  return t;
}

}  // namespace

TEST_CASE("a step in steady state allocates nothing") {
  int64_t probe = 0;
  counting = true;
  delete new int;  // the counter works
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
      CHECK(allocations.exchange(0) == 0);
    }
  }
}

}  // namespace ortrain
