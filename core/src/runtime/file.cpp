#include "runtime/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/error.h"

namespace ortrain {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

std::string reason() { return std::strerror(errno); }

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

int open_for_reading(const std::filesystem::path& path, const std::string& what) {
  // Without O_NONBLOCK, opening a pipe would block until another process writes to it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    fail(errno == ENOENT ? ErrorCode::kNoSuchFile : ErrorCode::kFail, "cannot open the ", what, " '",
         path.string(), "': ", reason());
  return fd;
}

size_t size_of_file(int fd, const std::filesystem::path& path, const std::string& what) {
  struct stat status {};
  require(::fstat(fd, &status) == 0, ErrorCode::kFail, "cannot examine the ", what, " '", path.string(),
          "': ", reason());
  require(S_ISREG(status.st_mode), ErrorCode::kInvalidArgument, "cannot read the ", what, " '", path.string(),
          "': expected a file, found ", S_ISDIR(status.st_mode) ? "a folder" : "a special file");
  return static_cast<size_t>(status.st_size);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// What a link leads to, which need not exist.
std::filesystem::path target_of(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as Linux has it
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i)
    path = folder_of(path) / std::filesystem::read_symlink(path, error);
  return path;
}

// The names of the temporary files of a file begin with this; the process and a number follow. Long names are
// cut, so that what follows has room in the 255 bytes of a name, and told apart by a hash.
std::string temporary_prefix(const std::filesystem::path& path) {
  constexpr size_t kMostBytes = 200;
  std::string name = path.filename().string();
  if (name.size() > kMostBytes) {
    const std::string hash = concat("-", std::hash<std::string>()(name));
    size_t kept = kMostBytes - hash.size();
    while (kept > 0 && (name[kept] & 0xC0) == 0x80) --kept;  // not within a character of UTF-8
    name = name.substr(0, kept) + hash;
  }
  return name + ".tmp-";
}

// Makes changes of names in the folder durable, after `path`, which is in it, was replaced.
void sync_folder_at(const std::filesystem::path& folder, const std::filesystem::path& path) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0 && errno == EACCES) return;  // a folder to write to, but not to read
  if (opened.get() >= 0 && (::fsync(opened.get()) == 0 || errno == EINVAL || errno == ENOTSUP)) return;
  // Texts are made here alone: the file is in place, so that nothing may fail for want of memory.
  fail(ErrorCode::kFail, "cannot sync the folder '", folder.string(), "': ", reason(), "; '", path.string(),
       "' was replaced, but a power cut may bring the old file back");
}

// Locks the file until it is closed, by this process or by its end. False if another one has locked it, or
// where files cannot be locked.
bool lock(int fd) {
  int result;
  do result = ::flock(fd, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

// Removes the temporary files of `path` whose processes ended without doing so. The folder is read with the
// calls of the system, since std::filesystem ends the process where memory is short.
void remove_abandoned(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  const std::string prefix = temporary_prefix(path);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(prefix) || name.find_first_not_of("0123456789-", prefix.size()) != name.npos)
      continue;
    const std::filesystem::path found = folder / name;
    const Descriptor file(::open(found.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat locked {
    }, named{};
    // The name may have gone to another file before this one was locked; with the lock, it cannot.
    if (file.get() >= 0 && lock(file.get()) && ::fstat(file.get(), &locked) == 0 &&
        ::lstat(found.c_str(), &named) == 0 && S_ISREG(named.st_mode) && locked.st_ino == named.st_ino)
      ::unlink(found.c_str());
  }
}

}  // namespace

std::string read_file(const std::filesystem::path& path, const std::string& what) {
  Descriptor file(open_for_reading(path, what));
  std::string content(size_of_file(file.get(), path, what), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::read(file.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    require(n >= 0, ErrorCode::kFail, "cannot read the ", what, " '", path.string(), "': ", reason());
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& what)
    : path_(path), what_(what) {
  Descriptor file(open_for_reading(path, what));
  size_ = size_of_file(file.get(), path, what);
  if (size_ == 0) return;  // nothing to map
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  require(mapped != MAP_FAILED, ErrorCode::kFail, "cannot map the ", what, " '", path.string(),
          "': ", reason());
  data_ = static_cast<const std::byte*>(mapped);
  descriptor_ = file.release();
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void MappedFile::prefetch() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_WILLNEED);
}

void MappedFile::read(std::byte* to, const std::byte* from, size_t bytes) const {
  auto offset = static_cast<off_t>(from - data_);
  while (bytes > 0) {
    const ssize_t n = ::pread(descriptor_, to, std::min(bytes, size_t{1} << 30), offset);
    if (n < 0 && errno == EINTR) continue;
    require(n > 0, ErrorCode::kFail, "cannot read the ", what_, " '", path_.string(),
            "': ", n == 0 ? "it was truncated while it was read" : reason());
    to += n;
    offset += n;
    bytes -= static_cast<size_t>(n);
  }
}

void write_file(const std::filesystem::path& path, const std::string& what, const void* data, size_t bytes) {
  FileWriter writer(path, what);
  writer.write(data, bytes);
  writer.commit();
}

FileWriter::FileWriter(std::filesystem::path path, std::string what)
    : path_(std::move(path)), what_(std::move(what)) {
  require(path_.has_filename(), ErrorCode::kInvalidArgument, "cannot write the ", what_, " '", path_.string(),
          "': expected a file name, found ", path_.empty() ? "an empty path" : "a folder");
  path_ = target_of(path_);
  std::error_code error;
  require(!std::filesystem::is_symlink(path_, error), ErrorCode::kInvalidArgument, "cannot write the ", what_,
          " '", path_.string(), "': expected a file name, found a link that leads to itself");
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  require(!exists || S_ISREG(old.st_mode), ErrorCode::kInvalidArgument, "cannot write the ", what_, " '",
          path_.string(), "': expected a file name, found ",
          S_ISDIR(old.st_mode) ? "a folder" : "a special file");
  buffer_.reserve(kBufferBytes);
  remove_abandoned(path_);
  open_temporary();
  if (exists) ::fchmod(descriptor_, old.st_mode & 07777);
}

FileWriter::~FileWriter() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Leaves a file that no other process takes for abandoned: it is locked, and was not removed before it was.
void FileWriter::open_temporary() {
  static std::atomic<unsigned> counter{0};
  for (;;) {
    std::string name =
        (folder_of(path_) / temporary_prefix(path_)).string() + concat(::getpid(), "-", counter++);
    Descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0 && errno == EEXIST) continue;
    if (file.get() < 0)
      fail(ErrorCode::kFail, "cannot write the ", what_, " '", path_.string(),
           "': cannot create a temporary file next to it: ", reason());
    if (!lock(file.get()) && errno == EWOULDBLOCK) continue;  // somebody is about to remove it
    struct stat status {};
    if (::fstat(file.get(), &status) == 0 && status.st_nlink == 0) continue;
    temporary_ = std::move(name);
    descriptor_ = file.release();
    return;
  }
}

void FileWriter::give_up(const char* step) {
  fail(ErrorCode::kFail, "cannot ", step, " the ", what_, " '", path_.string(), "': ", reason(),
       "; the existing file is unchanged");
}

void FileWriter::write_through(const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(descriptor_, data, std::min(bytes, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) give_up("write");
    data += n;
    bytes -= static_cast<size_t>(n);
  }
}

void FileWriter::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void FileWriter::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  position_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes > kBufferBytes)
    write_through(from, bytes);
  else
    buffer_.insert(buffer_.end(), from, from + bytes);
}

void FileWriter::skip_to(size_t position) {
  const std::vector<std::byte> zeros(position - position_);
  write(zeros.data(), zeros.size());
}

void FileWriter::sync() {
  flush();
  if (::fsync(descriptor_) != 0) give_up("sync");
  synced_ = true;
}

void FileWriter::commit() {
  if (!synced_) sync();
  const std::filesystem::path folder = folder_of(path_);  // once renamed, nothing may fail for want of memory
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) give_up("put in place");
  temporary_.clear();
  sync_folder_at(folder, path_);
}

void sync_folder(const std::filesystem::path& path) { sync_folder_at(folder_of(path), path); }

}  // namespace ortrain
