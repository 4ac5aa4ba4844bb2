// Memory: the CPU's, its allocator, and allocators of the caller.
#include <atomic>
#include <cstring>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "runtime/memory.h"
#include "runtime/system.h"
#include "runtime/text_tensor.h"

namespace ortrain::capi {
namespace {

// Counts and sizes of the default allocator's blocks. Steps allocate nothing through this allocator.
struct Statistics {
  std::atomic<size_t> count{0}, in_use{0}, most{0}, largest{0};
};
Statistics statistics;

void raise(std::atomic<size_t>& most, size_t to) {
  for (size_t before = most; before < to && !most.compare_exchange_weak(before, to);) continue;
}

void* ORT_API_CALL default_alloc(OrtAllocator*, size_t size) {
  void* memory = system::allocate_aligned(kAlignment, align_up(size == 0 ? 1 : size));
  if (memory == nullptr) return nullptr;
  const size_t bytes = system::usable_bytes(memory);
  ++statistics.count;
  raise(statistics.most, statistics.in_use += bytes);
  raise(statistics.largest, bytes);
  return memory;
}
void ORT_API_CALL default_free(OrtAllocator*, void* p) {
  if (p == nullptr) return;
  statistics.in_use -= system::usable_bytes(p);
  system::free_aligned(p);
}
const OrtMemoryInfo* ORT_API_CALL default_info(const OrtAllocator*) { return &cpu_memory(); }
OrtStatus* ORT_API_CALL default_stats(const OrtAllocator*, OrtKeyValuePairs** out) {
  return guarded("GetStats", [&] {
    auto pairs = std::make_unique<OrtKeyValuePairs>();
    pairs->entries = {{"InUse", std::to_string(statistics.in_use)},
                      {"MaxAllocSize", std::to_string(statistics.largest)},
                      {"MaxInUse", std::to_string(statistics.most)},
                      {"NumAllocs", std::to_string(statistics.count)}};
    pairs->changed();
    *out = pairs.release();
  });
}
void* ORT_API_CALL default_alloc_on_stream(OrtAllocator* allocator, size_t size, OrtSyncStream*) {
  return default_alloc(allocator, size);
}

const OrtMemoryInfo* ORT_API_CALL arena_info(const OrtAllocator*) {
  static const OrtMemoryInfo info{cpu_memory().name, OrtArenaAllocator, 0, OrtMemTypeDefault};
  return &info;
}

}  // namespace

const OrtMemoryInfo& cpu_memory() {
  static const OrtMemoryInfo info{"Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault};
  return info;
}

OrtAllocator* default_allocator() {
  static OrtAllocator allocator{ORT_API_VERSION, default_alloc, default_free,           default_info,
                                default_alloc,   default_stats, default_alloc_on_stream};
  return &allocator;
}

OrtAllocator* arena_allocator() {
  static OrtAllocator allocator{ORT_API_VERSION, default_alloc, default_free,           arena_info,
                                default_alloc,   default_stats, default_alloc_on_stream};
  return &allocator;
}

const std::vector<std::string>& device_names() {
  static const std::vector<std::string> names{"cpu"};
  return names;
}

const std::vector<std::string>& provider_names() {
  static const std::vector<std::string> names{"CPUExecutionProvider"};
  return names;
}

void* allocate(OrtAllocator* allocator, size_t bytes) {
  void* memory = allocator->Alloc(allocator, bytes);
  require(memory != nullptr || bytes == 0, ErrorCode::kFail, "the allocator returned no memory for ",
          counted(bytes, "byte"));
  return memory;
}

char* copy_text(OrtAllocator* allocator, std::string_view text) {
  char* copy = static_cast<char*>(allocate(allocator, text.size() + 1));
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

Tensor copy_tensor(OrtAllocator* allocator, const Tensor& tensor) {
  if (tensor.dtype() == DType::kString) return with_own_texts(tensor);
  Tensor copy = allocate_tensor(allocator, tensor.dtype(), tensor.shape());
  copy.copy_from(tensor);
  return copy;
}

Tensor allocate_tensor(OrtAllocator* allocator, DType dtype, const Shape& shape) {
  if (dtype == DType::kString) return text_tensor(shape);
  const size_t bits = bits_of(dtype);
  require(bits > 0, ErrorCode::kNotImplemented, "tensors of type ", to_string(dtype), " are not supported");
  const int64_t count = element_count(shape);
  size_t most = 0;
  require(!__builtin_mul_overflow(static_cast<size_t>(count), (bits + 7) / 8, &most),
          ErrorCode::kInvalidArgument, "a tensor of shape ", to_string(shape), " is too large");
  const size_t bytes = bytes_of(dtype, count);
  // At least one byte, so that an empty tensor has an address too.
  std::shared_ptr<void> memory(allocate(allocator, bytes == 0 ? 1 : bytes),
                               [allocator](void* p) { allocator->Free(allocator, p); });
  void* data = memory.get();
  return Tensor(dtype, shape, data, std::move(memory));
}

void CreateMemoryInfo(const char* name, OrtAllocatorType type, int id, OrtMemType mem_type,
                      OrtMemoryInfo** out) {
  require(std::string_view(name) == cpu_memory().name, ErrorCode::kInvalidArgument, "there is no device '",
          name, "' with id ", id, ", available: Cpu");
  *out = new OrtMemoryInfo{name, type, 0, mem_type};  // the CPU has one id, whatever a program asks for
}

void CreateMemoryInfo_V2(const char* name, OrtMemoryInfoDeviceType device_type, uint32_t, int32_t device_id,
                         OrtDeviceMemoryType mem_type, size_t, OrtAllocatorType allocator_type,
                         OrtMemoryInfo** out) {
  require(device_type == OrtMemoryInfoDeviceType_CPU && device_id == 0, ErrorCode::kInvalidArgument,
          "there is no device of type ", static_cast<int>(device_type), " with id ", device_id,
          ", available: type 0 (CPU) with id 0");
  require(mem_type == OrtDeviceMemoryType_DEFAULT || mem_type == OrtDeviceMemoryType_HOST_ACCESSIBLE,
          ErrorCode::kInvalidArgument, "mem_type is ", static_cast<int>(mem_type), ", expected 0 or 5");
  *out = new OrtMemoryInfo{name, allocator_type, device_id, OrtMemTypeDefault};
}

void CreateCpuMemoryInfo(OrtAllocatorType type, OrtMemType mem_type, OrtMemoryInfo** out) {
  *out = new OrtMemoryInfo{cpu_memory().name, type, 0, mem_type};
}

void CompareMemoryInfo(const OrtMemoryInfo* info1, const OrtMemoryInfo* info2, int* out) {
  const bool same = info1->name == info2->name && info1->type == info2->type && info1->id == info2->id &&
                    info1->mem_type == info2->mem_type;
  *out = same ? 0 : -1;
}

void MemoryInfoGetName(const OrtMemoryInfo* ptr, const char** out) { *out = ptr->name.c_str(); }
void MemoryInfoGetId(const OrtMemoryInfo* ptr, int* out) { *out = ptr->id; }
void MemoryInfoGetMemType(const OrtMemoryInfo* ptr, OrtMemType* out) { *out = ptr->mem_type; }
void MemoryInfoGetType(const OrtMemoryInfo* ptr, OrtAllocatorType* out) { *out = ptr->type; }
void MemoryInfoGetDeviceType(const OrtMemoryInfo*, OrtMemoryInfoDeviceType* out) {
  if (out != nullptr) *out = OrtMemoryInfoDeviceType_CPU;
}
OrtDeviceMemoryType MemoryInfoGetDeviceMemType(const OrtMemoryInfo*) { return OrtDeviceMemoryType_DEFAULT; }
uint32_t MemoryInfoGetVendorId(const OrtMemoryInfo*) { return 0; }

void AllocatorAlloc(OrtAllocator* ort_allocator, size_t size, void** out) {
  *out = allocate(ort_allocator, size);
}
void AllocatorFree(OrtAllocator* ort_allocator, void* p) {
  if (p != nullptr) ort_allocator->Free(ort_allocator, p);
}
void AllocatorGetInfo(const OrtAllocator* ort_allocator, const OrtMemoryInfo** out) {
  require(ort_allocator->Info != nullptr, ErrorCode::kInvalidArgument,
          "the allocator has no Info, expected a function");
  *out = ort_allocator->Info(ort_allocator);
}
void AllocatorGetStats(const OrtAllocator* ort_allocator, OrtKeyValuePairs** out) {
  constexpr uint32_t kStatisticsSince = 23;
  require(ort_allocator->version >= kStatisticsSince && ort_allocator->GetStats, ErrorCode::kNotImplemented,
          "the allocator keeps no statistics");
  expect_ok(ort_allocator->GetStats(ort_allocator, out), "GetStats of the allocator");
}
void GetAllocatorWithDefaultOptions(OrtAllocator** out) { *out = default_allocator(); }

// Allocators of sessions are never freed: they are the library's, or the program's.
void CreateAllocator(const OrtSession* session, const OrtMemoryInfo*, OrtAllocator** out) {
  *out = session->allocator ? session->allocator : default_allocator();
}
void ReleaseAllocator(OrtAllocator*) {}

}  // namespace ortrain::capi
