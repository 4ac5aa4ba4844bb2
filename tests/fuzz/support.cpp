#include "support.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_WITH_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define FUZZ_WITH_ADDRESS_SANITIZER
#endif

#ifdef FUZZ_WITH_ADDRESS_SANITIZER
constexpr bool kSanitized = true;

// The sanitizer's own operator new ends the process where it should throw.
void* operator new(size_t size) {
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }

// An allocation of more than 2 GB fails, as it does where the process is limited. What the operators above
// allocate may be released by those that they do not replace. Visible, because gcc's sanitizer is a library.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options() {
  return "alloc_dealloc_mismatch=0:allocator_may_return_null=1:max_allocation_size_mb=2000:"
         "malloc_context_size=4:quarantine_size_mb=16";
}
#else
constexpr bool kSanitized = false;
#endif

namespace ortrain::fuzz {

namespace {

constexpr int64_t kMostElements = 4096;
constexpr size_t kMemory = size_t{2} << 30;

struct Folder {
  std::filesystem::path path;
  pid_t owner = getpid();
  Folder() {
    // in memory where that is possible: files are synced when they are written
    std::string name = std::filesystem::exists("/dev/shm")
                           ? "/dev/shm/ortrain-fuzz-XXXXXX"
                           : (std::filesystem::temp_directory_path() / "ortrain-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) wrong("cannot create a folder for temporary files");
    path = name;
    std::string bytes(kExternalBytes, '\0');
    std::iota(bytes.begin(), bytes.end(), '\0');
    std::ofstream(path / kExternalFile, std::ios::binary) << bytes;
  }
  ~Folder() {
    std::error_code ignored;
    if (getpid() == owner) std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

const std::filesystem::path& scratch() {
  static const Folder folder;
  return folder.path;
}

void limit_memory() {
  if constexpr (kSanitized) return;
  const rlimit limit{kMemory, kMemory};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) wrong("cannot limit the memory");
}

void wrong(const std::string& what) {
  std::fprintf(stderr, "WRONG: %s\n", what.c_str());
  std::abort();
}

int64_t InputMaker::dimension(const Dim& dim) {
  static constexpr int64_t kSizes[] = {2, 3, 1, 4, 2, 5, 0, 7};
  if (dim.known()) return dim.value;
  const int64_t fresh = kSizes[below(random_, std::size(kSizes))];
  return dim.symbol.empty() ? fresh : symbols_.try_emplace(dim.symbol, fresh).first->second;
}

std::optional<Tensor> InputMaker::make_tensor(const ValueInfo& info) {
  const DType dtype = info.dtype == DType::kUndefined ? DType::kFloat : info.dtype;
  if (bits_of(dtype) == 0) return std::nullopt;
  Shape shape;
  if (info.dims)
    for (const Dim& dim : *info.dims) shape.push_back(dimension(dim));
  else
    for (size_t rank = below(random_, 4); rank > 0; --rank) shape.push_back(dimension({}));
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim > kMostElements || count > kMostElements) return std::nullopt;
    count *= dim;
  }
  if (count > kMostElements) return std::nullopt;

  Tensor out(dtype, shape);
  std::memset(out.raw(), 0, out.bytes());
  // one tensor in eight has special values throughout, one in eight some of them
  const size_t mode = below(random_, 8);
  const auto is_special = [&] { return mode == 0 || (mode == 1 && below(random_, 4) == 0); };
  const auto real = [&] {
    return is_special() ? interesting_float(random_) : static_cast<double>(below(random_, 64)) / 16.0 - 1.0;
  };
  const auto whole = [&](int64_t lowest) {
    return is_special() ? interesting_integer(random_) : static_cast<int64_t>(below(random_, 5)) + lowest;
  };
  const int64_t lowest = mode == 2 ? -2 : 0;
  const auto fill = [&](auto* at, auto&& next) {
    for (int64_t i = 0; i < count; ++i) at[i] = static_cast<std::remove_pointer_t<decltype(at)>>(next());
  };
  switch (dtype) {
    case DType::kFloat:
      fill(out.data<float>(), real);
      break;
    case DType::kDouble:
      fill(out.data<double>(), real);
      break;
    case DType::kInt64:
      fill(out.data<int64_t>(), [&] { return whole(lowest); });
      break;
    case DType::kInt32:
      fill(out.data<int32_t>(), [&] { return whole(lowest); });
      break;
    case DType::kBool:
      fill(reinterpret_cast<uint8_t*>(out.raw()), [&] { return below(random_, 2); });
      break;
    default:  // any bytes are values
      for (size_t i = 0; i < out.bytes(); ++i) out.raw()[i] = static_cast<std::byte>(below(random_, 256));
  }
  return out;
}

std::optional<Value> InputMaker::make(const ValueInfo& info) {
  if (info.is_optional && below(random_, 2) == 0) return Value(Nothing{});
  if (!info.is_sequence) {
    auto tensor = make_tensor(info);
    return tensor ? std::optional<Value>(std::move(*tensor)) : std::nullopt;
  }
  std::vector<Tensor> elements;
  for (size_t n = below(random_, 4); n > 0; --n) {
    auto tensor = make_tensor(info);
    if (!tensor) return std::nullopt;
    elements.push_back(std::move(*tensor));
  }
  return Value(Sequence(info.dtype == DType::kUndefined ? DType::kFloat : info.dtype, elements));
}

void read_all(const Value& value) {
  static volatile unsigned sum;
  const auto read = [](const Tensor& tensor) {
    unsigned part = 0;
    for (size_t i = 0; i < tensor.bytes(); ++i) part += static_cast<unsigned>(tensor.raw()[i]);
    sum = sum + part;
  };
  if (const auto* tensor = std::get_if<Tensor>(&value)) read(*tensor);
  if (const auto* sequence = std::get_if<Sequence>(&value))
    for (size_t i = 0; i < sequence->size(); ++i) read(sequence->at(i));
}

}  // namespace ortrain::fuzz
