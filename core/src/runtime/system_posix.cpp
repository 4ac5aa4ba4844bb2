// POSIX systems: Linux, Android, macOS, iOS. What they share with WebAssembly is in system_descriptors.cpp.
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wctype.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

#include "runtime/control_group.h"
#include "runtime/system.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <malloc.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#include <sys/sysctl.h>
#include <xlocale.h>
#endif

namespace ortrain::system {

namespace {

int descriptor(intptr_t handle) { return static_cast<int>(handle); }

// The swap space of Linux, in bytes; elsewhere 0.
size_t swap_space() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (size_t kilobytes = 0; file >> name;) {
    if (name == "SwapTotal:" && file >> kilobytes) return kilobytes << 10;
    file.ignore(256, '\n');
  }
  return 0;
}

// A locale that knows the letters of all languages.
locale_t unicode() {
  static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

}  // namespace

File::Lock File::lock() {
  int result;
  do result = ::flock(descriptor(handle_), LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  return result == 0 ? Lock::kTaken : errno == EWOULDBLOCK ? Lock::kHeld : Lock::kFailed;
}

void File::copy_permissions(const std::filesystem::path& from) {
  struct stat status {};
  if (::stat(from.c_str(), &status) == 0) ::fchmod(descriptor(handle_), status.st_mode & 07777);
}

const std::byte* File::map(size_t bytes) const {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor(handle_), 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<const std::byte*>(mapped);
}

void unmap(const std::byte* mapped, size_t bytes) { ::munmap(const_cast<std::byte*>(mapped), bytes); }

void prefetch(const std::byte* mapped, size_t bytes) {
  ::madvise(const_cast<std::byte*>(mapped), bytes, MADV_WILLNEED);
}

void remove_unlocked(const std::filesystem::path& path) {
  File file;
  if (const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); fd >= 0) {
    struct stat locked {
    }, named{};
    // The name may have gone to another file before this one was locked; with the lock, it cannot.
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &locked) == 0 &&
        ::lstat(path.c_str(), &named) == 0 && S_ISREG(named.st_mode) && locked.st_ino == named.st_ino)
      ::unlink(path.c_str());
    ::close(fd);
  }
}

bool sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES;  // a folder to write to, but not to read
  const bool synced = ::fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
  const int error = errno;
  ::close(fd);
  errno = error;
  return synced;
}

void* open_library(const std::filesystem::path& path, std::string& why) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) why = ::dlerror();
  return library;
}

void close_library(void* library) { ::dlclose(library); }
void* symbol(void* library, const char* name) { return ::dlsym(library, name); }
void* symbol_of_program(const char* name) { return ::dlsym(RTLD_DEFAULT, name); }

void* allocate_aligned(size_t alignment, size_t bytes) {
  void* block = nullptr;  // aligned_alloc is in Android since API 28 alone
  return ::posix_memalign(&block, std::max(alignment, sizeof block), bytes) == 0 ? block : nullptr;
}
void free_aligned(void* block) { std::free(block); }

size_t usable_bytes(void* block) {
#if defined(__APPLE__)
  return ::malloc_size(block);
#else
  return ::malloc_usable_size(block);
#endif
}

void prefer_huge_pages([[maybe_unused]] void* block, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  ::madvise(block, bytes, MADV_HUGEPAGE);
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

size_t machine_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || size <= 0) return SIZE_MAX;
  return static_cast<size_t>(pages) * static_cast<size_t>(size) + swap_space();
}

std::optional<AddressSpace> address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  if (!(file >> pages)) return std::nullopt;
  return AddressSpace{pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)),
                      static_cast<size_t>(limit.rlim_cur)};
}

int processors() {
  int usable = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) usable = CPU_COUNT(&set);
  if (const int granted = granted_processors(); granted > 0) usable = std::min(usable, granted);
#endif
  return std::max(1, usable);
}

int most_threads() { return std::numeric_limits<int>::max(); }

#if defined(__aarch64__) && defined(__linux__)
ArmInstructions arm_instructions() {
  // Older C libraries do not name these bits.
  constexpr unsigned long kDotProducts = 1ul << 20, kBf16 = 1ul << 14;
  return {(::getauxval(AT_HWCAP) & kDotProducts) != 0, (::getauxval(AT_HWCAP2) & kBf16) != 0};
}
#elif defined(__aarch64__) && defined(__APPLE__)
ArmInstructions arm_instructions() {
  const auto has = [](const char* name) {
    int value = 0;
    size_t bytes = sizeof value;
    return ::sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
  };
  return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_BF16")};
}
#else
ArmInstructions arm_instructions() { return {}; }
#endif

bool ask_for_tile_registers() {
#if defined(__x86_64__) && defined(__linux__)
  // Older headers do not name these numbers.
  constexpr int kAskPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool locks_when_threads_end() { return false; }

void bind_thread([[maybe_unused]] std::span<const int> processors) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors)
    if (processor < CPU_SETSIZE) CPU_SET(processor, &set);
  ::sched_setaffinity(0, sizeof set, &set);  // without these processors, the thread stays where it was
#endif
}

#if defined(__linux__)
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load(std::memory_order_acquire) == value)
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}
#else
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) { word.wait(value, std::memory_order_acquire); }
void wake(std::atomic<uint32_t>& word) { word.notify_all(); }
#endif

int64_t process_id() { return ::getpid(); }
void before_fork(void (*f)()) { ::pthread_atfork(f, nullptr, nullptr); }

uint32_t lower_case(uint32_t letter) {
  return static_cast<uint32_t>(::towlower_l(static_cast<wint_t>(letter), unicode()));
}
uint32_t upper_case(uint32_t letter) {
  return static_cast<uint32_t>(::towupper_l(static_cast<wint_t>(letter), unicode()));
}

}  // namespace ortrain::system
