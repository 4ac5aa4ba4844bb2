// Files by descriptors, and local time: the functions that POSIX systems and WASI share. A build for Windows
// leaves this source out.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/system.h"

namespace ortrain::system {

namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;

std::optional<FileInfo> info_of(const struct stat& status) {
  if (!std::in_range<size_t>(status.st_size)) {  // more than there are addresses
    errno = EFBIG;
    return std::nullopt;
  }
  return FileInfo{S_ISREG(status.st_mode)   ? FileInfo::kFile
                  : S_ISDIR(status.st_mode) ? FileInfo::kFolder
                                            : FileInfo::kSpecial,
                  static_cast<size_t>(status.st_size)};
}

int descriptor(intptr_t handle) { return static_cast<int>(handle); }

}  // namespace

std::string reason() { return std::strerror(errno); }

Failure failure() {
  switch (errno) {
    case ENOENT:
      return Failure::kNotFound;
    case EEXIST:
      return Failure::kExists;
    case EACCES:
#ifdef ENOTCAPABLE
    case ENOTCAPABLE:  // not in a folder that the host has opened
#endif
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
  // Without O_NONBLOCK, opening a pipe would block until another process writes to it.
  return File(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

File File::create(const std::filesystem::path& path) {
  return File(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
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

bool File::has_name() const {
  struct stat status {};
  return ::fstat(descriptor(handle_), &status) != 0 || status.st_nlink > 0;
}

bool remove_file(const std::filesystem::path& path) { return ::unlink(path.c_str()) == 0; }

bool replace(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::rename(from.c_str(), to.c_str()) == 0;
}

bool link(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::link(from.c_str(), to.c_str()) == 0;
}

void for_each_name(const std::filesystem::path& folder, const std::function<void(std::string_view)>& f) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get())) f(entry->d_name);
}

std::tm local_time(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  return local;
}

}  // namespace ortrain::system
