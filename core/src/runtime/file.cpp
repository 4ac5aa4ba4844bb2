#include "runtime/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
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
  namespace fs = std::filesystem;
  std::error_code error;
  // A link stays a link: its target is replaced.
  if (fs::is_symlink(path_, error))
    if (fs::path target = fs::canonical(path_, error); !error) path_ = std::move(target);
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  require(!exists || S_ISREG(old.st_mode), ErrorCode::kInvalidArgument, "cannot write the ", what_, " '",
          path_.string(), "': expected a file name, found ",
          S_ISDIR(old.st_mode) ? "a folder" : "a special file");
  static std::atomic<unsigned> counter{0};
  do {
    temporary_ = path_.string() + concat(".tmp-", ::getpid(), "-", counter++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    const std::string why = reason();
    temporary_.clear();
    fail(ErrorCode::kFail, "cannot write the ", what_, " '", path_.string(),
         "': cannot create a temporary file next to it: ", why);
  }
  if (exists) ::fchmod(descriptor_, old.st_mode & 07777);
  buffer_.reserve(kBufferBytes);
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileWriter::give_up(const char* step) {
  fail(ErrorCode::kFail, "cannot ", step, " the ", what_, " '", path_.string(), "': ", reason(),
       "; the file that was there is unchanged");
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
  const int fd = descriptor_;
  descriptor_ = -1;
  if (::close(fd) != 0) give_up("close");
}

void FileWriter::commit() {
  if (descriptor_ >= 0) sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) give_up("put in place");
  temporary_.clear();
  sync_folder(path_);
}

void sync_folder(const std::filesystem::path& path) {
  Descriptor folder(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());
}

}  // namespace ortrain
