// Files: reading them whole, replacing them safely.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/system.h"

namespace ortrain {

// The entire contents. `what` says in messages what was being read ("checkpoint", "training model").
std::string read_file(const std::filesystem::path& path, const std::string& what);

// A file's contents mapped into memory for reading: pages are loaded when they are accessed. Accessed pages
// count as memory of the process while the file is mapped; copy large parts with read() instead.
class MappedFile {
 public:
  MappedFile(const std::filesystem::path& path, const std::string& what);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Tells the system that all of it will be read soon.
  void prefetch() const;
  bool holds(const std::byte* at) const { return at >= data_ && at < data_ + size_; }
  // Copies `bytes` at `from`, which are within the contents, from the file and not through the mapping.
  // Throws if the file was truncated.
  void read(std::byte* to, const std::byte* from, size_t bytes) const;

 private:
  std::filesystem::path path_;
  std::string what_;
  system::File file_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Replaces `path` in one step: writes to a temporary file next to it, syncs, renames, so that a crash or a
// full disk leaves the old file or the new one. What is left of the temporary files of processes that were
// killed is removed by the next one that writes to the same path. A link stays a link: what it leads to is
// replaced or created. Throws Error(kFail) naming the path and the system's reason.
void write_file(const std::filesystem::path& path, const std::string& what, const void* data, size_t bytes);

// The same in parts. Without commit() nothing changes.
class FileWriter {
 public:
  FileWriter(std::filesystem::path path, std::string what);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);
  // Writes zeros up to `position`, which must not be before the current one.
  void skip_to(size_t position);
  size_t position() const { return position_; }

  // Syncs everything written so far to the disk, under the temporary name.
  void sync();
  // Syncs if necessary, then puts the file in place.
  void commit();

 private:
  void open_temporary();
  [[noreturn]] void reject_folder();
  void flush();
  void write_through(const std::byte* data, size_t bytes);
  [[noreturn]] void give_up(const char* step);

  std::filesystem::path path_;
  std::string what_;
  std::filesystem::path temporary_;  // empty after it was renamed or removed
  system::File file_;                // locked as long as the temporary file is in use
  bool synced_ = false;
  size_t position_ = 0;
  std::vector<std::byte> buffer_;  // collects small writes
};

// Makes changes of names in the folder of `path` durable. Throws Error(kFail), unless the file system has no
// such thing.
void sync_folder(const std::filesystem::path& path);

}  // namespace ortrain
