#include "runtime/file.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "runtime/error.h"
#include "runtime/path.h"

namespace ortrain {

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

using system::reason;

// "a folder" or "a special file", for messages.
const char* kind_of(const system::FileInfo& info) {
  return info.kind == system::FileInfo::kFolder ? "a folder" : "a special file";
}

system::File open_for_reading(const std::filesystem::path& path, const std::string& what) {
  system::File file = system::File::open(path);
  if (!file)
    fail(system::failure() == system::Failure::kNotFound ? ErrorCode::kNoSuchFile : ErrorCode::kFail,
         "cannot open the ", what, " '", to_utf8(path), "': ", reason());
  return file;
}

size_t size_of_file(const system::File& file, const std::filesystem::path& path, const std::string& what) {
  const std::optional<system::FileInfo> info = file.info();
  require(info.has_value(), ErrorCode::kFail, "cannot examine the ", what, " '", to_utf8(path),
          "': ", reason());
  require(info->kind == system::FileInfo::kFile, ErrorCode::kInvalidArgument, "cannot read the ", what, " '",
          to_utf8(path), "': expected a file, found ", kind_of(*info));
  return info->bytes;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// The target of a link, which need not exist.
std::filesystem::path target_of(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as Linux has it
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i)
    path = folder_of(path) / std::filesystem::read_symlink(path, error);
  return path;
}

// The names of the temporary files of a file begin with this; the process and a number follow. Long names are
// cut, so that the rest has room in the 255 bytes of a name; a hash tells them apart.
std::string temporary_prefix(const std::filesystem::path& path) {
  constexpr size_t kMostBytes = 200;
  std::string name = to_utf8(path.filename());
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
  if (system::sync_folder(folder)) return;
  // Texts are made only here: the file is in place, so running out of memory must not fail the call.
  fail(ErrorCode::kFail, "cannot sync the folder '", to_utf8(folder), "': ", reason(), "; '", to_utf8(path),
       "' was replaced, but a power cut may bring the old file back");
}

// Removes the temporary files of `path` whose processes ended without doing so.
void remove_abandoned(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  const std::string prefix = temporary_prefix(path);
  system::for_each_name(folder, [&](std::string_view name) {
    if (name.starts_with(prefix) && name.find_first_not_of("0123456789-", prefix.size()) == name.npos)
      system::remove_unlocked(folder / from_utf8(name));
  });
}

}  // namespace

std::string read_file(const std::filesystem::path& path, const std::string& what) {
  const system::File file = open_for_reading(path, what);
  std::string content(size_of_file(file, path, what), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ptrdiff_t n = file.read(content.data() + done, content.size() - done, done);
    require(n >= 0, ErrorCode::kFail, "cannot read the ", what, " '", to_utf8(path), "': ", reason());
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& what)
    : path_(path), what_(what) {
  system::File file = open_for_reading(path, what);
  size_ = size_of_file(file, path, what);
  if (size_ == 0) return;  // nothing to map
  data_ = file.map(size_);
  require(data_ != nullptr, ErrorCode::kFail, "cannot map the ", what, " '", to_utf8(path), "': ", reason());
  file_ = std::move(file);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) system::unmap(data_, size_);
}

void MappedFile::prefetch() const {
  if (data_ != nullptr) system::prefetch(data_, size_);
}

void MappedFile::read(std::byte* to, const std::byte* from, size_t bytes) const {
  auto offset = static_cast<uint64_t>(from - data_);
  while (bytes > 0) {
    const ptrdiff_t n = file_.read(to, bytes, offset);
    require(n > 0, ErrorCode::kFail, "cannot read the ", what_, " '", to_utf8(path_),
            "': ", n == 0 ? "it was truncated while it was read" : reason());
    to += n;
    offset += static_cast<uint64_t>(n);
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
  require(path_.has_filename(), ErrorCode::kInvalidArgument, "cannot write the ", what_, " '", to_utf8(path_),
          "': expected a file name, found ", path_.empty() ? "an empty path" : "a folder");
  path_ = target_of(path_);
  std::error_code error;
  require(!std::filesystem::is_symlink(path_, error), ErrorCode::kInvalidArgument, "cannot write the ", what_,
          " '", to_utf8(path_), "': expected a file name, found a link that leads to itself");
  const std::optional<system::FileInfo> old = system::info(path_);
  require(!old || old->kind == system::FileInfo::kFile, ErrorCode::kInvalidArgument, "cannot write the ",
          what_, " '", to_utf8(path_), "': expected a file name, found ", old ? kind_of(*old) : "");
  buffer_.reserve(kBufferBytes);
  remove_abandoned(path_);
  open_temporary();
  if (old) file_.copy_permissions(path_);
}

FileWriter::~FileWriter() {
  if (!temporary_.empty()) system::remove_file(temporary_);
}

// Opens a locked temporary file, so that no other process takes the file for abandoned. A file that another
// process removed before it was locked is replaced with a new one.
void FileWriter::open_temporary() {
  static std::atomic<unsigned> counter{0};
  for (;;) {
    std::filesystem::path name =
        folder_of(path_) / from_utf8(concat(temporary_prefix(path_), system::process_id(), "-", counter++));
    system::File file = system::File::create(name);
    if (!file && system::failure() == system::Failure::kExists) continue;
    if (!file) reject_folder();
    // Another process may be about to remove the file.
    if (file.lock() == system::File::Lock::kHeld || !file.has_name()) continue;
    temporary_ = std::move(name);
    file_ = std::move(file);
    return;
  }
}

// Throws because no file can be created in the folder.
void FileWriter::reject_folder() {
  const bool is_missing = system::failure() == system::Failure::kNotFound;
  const std::string cause = reason();  // before another call of the system
  const std::filesystem::path folder = folder_of(path_);
  const std::optional<system::FileInfo> found = system::info(folder);
  if (found && found->kind != system::FileInfo::kFolder)
    fail(ErrorCode::kFail, "cannot write the ", what_, " '", to_utf8(path_), "': '", to_utf8(folder),
         "' is not a folder");
  if (is_missing && !found)
    fail(ErrorCode::kFail, "cannot write the ", what_, " '", to_utf8(path_), "': there is no folder '",
         to_utf8(folder), "'");
  fail(ErrorCode::kFail, "cannot write the ", what_, " '", to_utf8(path_),
       "': cannot create a file in the folder '", to_utf8(folder), "': ", cause);
}

void FileWriter::give_up(const char* step) {
  const std::string cause = reason();  // before another call of the system
  fail(ErrorCode::kFail, "cannot ", step, " the ", what_, " '", to_utf8(path_), "': ", cause,
       system::info(path_) ? "; the existing file is unchanged" : "; no file is left");
}

void FileWriter::write_through(const std::byte* data, size_t bytes) {
  if (!file_.write(data, bytes)) give_up("write");
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
  if (!file_.sync()) give_up("sync");
  synced_ = true;
}

void FileWriter::commit() {
  if (!synced_) sync();
  const std::filesystem::path folder = folder_of(path_);  // before the rename: later, no allocation may fail
  if (!system::replace(temporary_, path_)) give_up("put in place");
  temporary_.clear();
  sync_folder_at(folder, path_);
}

void sync_folder(const std::filesystem::path& path) { sync_folder_at(folder_of(path), path); }

}  // namespace ortrain
