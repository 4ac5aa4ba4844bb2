// WebAssembly with the interface WASI: one thread, one process, files in the folders that the host opens for
// it.
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wctype.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/system.h"

namespace ortrain::system {

namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;

int descriptor(intptr_t handle) { return static_cast<int>(handle); }

std::optional<FileInfo> info_of(const struct stat& status) {
  if (static_cast<uint64_t>(status.st_size) > SIZE_MAX) {  // more than there are addresses
    errno = EFBIG;
    return std::nullopt;
  }
  return FileInfo{S_ISREG(status.st_mode)   ? FileInfo::kFile
                  : S_ISDIR(status.st_mode) ? FileInfo::kFolder
                                            : FileInfo::kSpecial,
                  static_cast<size_t>(status.st_size)};
}

}  // namespace

std::string reason() { return std::strerror(errno); }

Failure failure() {
  switch (errno) {
    case ENOENT:
      return Failure::kNotFound;
    case EEXIST:
      return Failure::kExists;
    case EACCES:
    case ENOTCAPABLE:  // not in a folder that the host has opened
      return Failure::kDenied;
    default:
      return Failure::kOther;
  }
}

std::optional<FileInfo> info(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return info_of(status);
}

File File::open(const std::filesystem::path& path) {
  return File(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
}

File File::create(const std::filesystem::path& path) {
  return File(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666));
}

void File::close() {
  if (handle_ != kNone) ::close(descriptor(std::exchange(handle_, kNone)));
}

std::optional<FileInfo> File::info() const {
  struct stat status {};
  if (::fstat(descriptor(handle_), &status) != 0) return std::nullopt;
  return info_of(status);
}

ptrdiff_t File::read(void* to, size_t bytes, uint64_t offset) const {
  for (;;) {
    const ssize_t n =
        ::pread(descriptor(handle_), to, std::min(bytes, kMostAtOnce), static_cast<off_t>(offset));
    if (n >= 0 || errno != EINTR) return n;
  }
}

bool File::write(const void* from, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor(handle_), at, std::min(bytes, kMostAtOnce));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool File::sync() { return ::fsync(descriptor(handle_)) == 0; }

// WASI has neither locks nor permissions of files.
File::Lock File::lock() { return Lock::kTaken; }
void File::copy_permissions(const std::filesystem::path&) {}

bool File::has_name() const {
  struct stat status {};
  return ::fstat(descriptor(handle_), &status) != 0 || status.st_nlink > 0;
}

// Files cannot be mapped: their contents are copied.
const std::byte* File::map(size_t bytes) const {
  std::unique_ptr<std::byte, void (*)(void*)> copy(static_cast<std::byte*>(std::malloc(bytes)), std::free);
  if (!copy) return nullptr;
  for (size_t done = 0; done < bytes;) {
    const ptrdiff_t n = read(copy.get() + done, bytes - done, done);
    if (n < 0) return nullptr;
    if (n == 0) {  // truncated meanwhile
      errno = EIO;
      return nullptr;
    }
    done += static_cast<size_t>(n);
  }
  return copy.release();
}

void unmap(const std::byte* mapped, size_t) { std::free(const_cast<std::byte*>(mapped)); }
void prefetch(const std::byte*, size_t) {}

bool remove_file(const std::filesystem::path& path) { return ::unlink(path.c_str()) == 0; }
// A process on the host may be writing the file: without locks, nobody can tell.
void remove_unlocked(const std::filesystem::path&) {}

bool replace(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0;
}

bool link(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::link(from.c_str(), to.c_str()) == 0;
}

bool sync_folder(const std::filesystem::path&) { return true; }

void for_each_name(const std::filesystem::path& folder, const std::function<void(std::string_view)>& f) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get())) f(entry->d_name);
}

void* open_library(const std::filesystem::path&, std::string& why) {
  why = "a WebAssembly module cannot load libraries";
  return nullptr;
}
void close_library(void*) {}
void* symbol(void*, const char*) { return nullptr; }
void* symbol_of_program(const char*) { return nullptr; }

void* allocate_aligned(size_t alignment, size_t bytes) { return std::aligned_alloc(alignment, bytes); }
void free_aligned(void* block) { std::free(block); }
size_t usable_bytes(void* block) { return ::malloc_usable_size(block); }
void prefer_huge_pages(void*, size_t) {}
void return_freed_memory() {}

// Its memory grows up to all addresses, or until the host refuses.
size_t machine_memory() { return SIZE_MAX; }
std::optional<AddressSpace> address_space() { return std::nullopt; }

int processors() { return 1; }
void bind_thread(std::span<const int>) {}
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) { word.wait(value, std::memory_order_acquire); }
void wake(std::atomic<uint32_t>& word) { word.notify_all(); }

int64_t process_id() { return 1; }
void before_fork(void (*)()) {}

std::tm local_time(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  return local;
}

uint32_t lower_case(uint32_t letter) {
  return static_cast<uint32_t>(::towlower(static_cast<wint_t>(letter)));
}
uint32_t upper_case(uint32_t letter) {
  return static_cast<uint32_t>(::towupper(static_cast<wint_t>(letter)));
}

}  // namespace ortrain::system
