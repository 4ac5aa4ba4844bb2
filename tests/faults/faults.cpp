// The calls in place of those of libc and of the C++ runtime. They serve this program and the shared
// libraries that it loads; memory still comes from malloc, so that a leak checker sees it.
#include "faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>

namespace ortrain::faults {
namespace {

std::atomic<bool> armed{false}, has_fired{false};
std::atomic<int64_t> counts[kKinds];
std::atomic<int> failing_kind{kKinds};
std::atomic<int64_t> failing_call{0};
std::atomic<int64_t> before_rename[kMostRenames];

// Whether this call is the one to fail.
bool fails(Kind kind) {
  if (!armed.load(std::memory_order_relaxed)) return false;
  const int64_t call = counts[kind]++;
  if (kind == kRename && call < kMostRenames) before_rename[call] = counts[kAllocation].load();
  if (kind != failing_kind || call != failing_call) return false;
  has_fired = true;
  return true;
}

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

void* allocate(size_t bytes) {
  if (fails(kAllocation)) return nullptr;
  return std::malloc(bytes ? bytes : 1);
}

void* allocate_or_throw(size_t bytes) {
  void* p = allocate(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

void* allocate_aligned(size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<size_t>(alignment);
  void* p = fails(kAllocation) ? nullptr : ::aligned_alloc(a, (bytes + a - 1) / a * a);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void arm(Kind kind, int64_t skipped) {
  for (auto& count : counts) count = 0;
  has_fired = false;
  failing_kind = kind;
  failing_call = skipped;
}
void arm() { arm(kKinds, 0); }
void begin() { armed = true; }
void end() { armed = false; }
int64_t count(Kind kind) { return counts[kind]; }
int64_t allocations_before_rename(int64_t rename) { return before_rename[rename]; }
bool fired() { return has_fired; }

}  // namespace ortrain::faults

namespace faults = ortrain::faults;

void* operator new(size_t bytes) { return faults::allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return faults::allocate_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return faults::allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return faults::allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t a) { return faults::allocate_aligned(bytes, a); }
void* operator new[](size_t bytes, std::align_val_t a) { return faults::allocate_aligned(bytes, a); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }

extern "C" {

// The core's own calls, which the linker leads here (--wrap).
void* __real_malloc(size_t bytes);
int __real_posix_memalign(void** block, size_t alignment, size_t bytes);
void* __wrap_malloc(size_t bytes) {
  return faults::fails(faults::kAllocation) ? nullptr : __real_malloc(bytes);
}
int __wrap_posix_memalign(void** block, size_t alignment, size_t bytes) {
  return faults::fails(faults::kAllocation) ? ENOMEM : __real_posix_memalign(block, alignment, bytes);
}

#define ORTRAIN_FAILS(kind, error)   \
  if (faults::fails(faults::kind)) { \
    errno = error;                   \
    return -1;                       \
  }

ssize_t read(int fd, void* to, size_t bytes) {
  static auto* const real = faults::next<ssize_t(int, void*, size_t)>("read");
  ORTRAIN_FAILS(kRead, EIO)
  return real(fd, to, bytes);
}
ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  static auto* const real = faults::next<ssize_t(int, void*, size_t, off_t)>("pread");
  ORTRAIN_FAILS(kRead, EIO)
  return real(fd, to, bytes, offset);
}
ssize_t pread64(int fd, void* to, size_t bytes, off64_t offset) {
  static auto* const real = faults::next<ssize_t(int, void*, size_t, off64_t)>("pread64");
  ORTRAIN_FAILS(kRead, EIO)
  return real(fd, to, bytes, offset);
}
ssize_t write(int fd, const void* from, size_t bytes) {
  static auto* const real = faults::next<ssize_t(int, const void*, size_t)>("write");
  ORTRAIN_FAILS(kWrite, ENOSPC)
  return real(fd, from, bytes);
}
int fsync(int fd) {
  static auto* const real = faults::next<int(int)>("fsync");
  ORTRAIN_FAILS(kSync, EIO)
  return real(fd);
}
int open(const char* path, int flags, ...) {
  static auto* const real = faults::next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  ORTRAIN_FAILS(kOpen, EMFILE)
  return real(path, flags, mode);
}
int rename(const char* from, const char* to) noexcept {
  static auto* const real = faults::next<int(const char*, const char*)>("rename");
  ORTRAIN_FAILS(kRename, EIO)
  return real(from, to);
}
int link(const char* from, const char* to) noexcept {
  static auto* const real = faults::next<int(const char*, const char*)>("link");
  ORTRAIN_FAILS(kLink, EIO)
  return real(from, to);
}
int unlink(const char* path) noexcept {
  static auto* const real = faults::next<int(const char*)>("unlink");
  ORTRAIN_FAILS(kUnlink, EIO)
  return real(path);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static auto* const real = faults::next<void*(void*, size_t, int, int, int, off_t)>("mmap");
  if (fd >= 0 && faults::fails(faults::kMap)) {  // memory without a file counts as an allocation
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(at, bytes, protection, flags, fd, offset);
}

}  // extern "C"
