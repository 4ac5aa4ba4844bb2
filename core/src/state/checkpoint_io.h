// Reading and writing checkpoint files (checkpoint.fbs).
//
// Layout of the files we write: the tables come first, then the tensors' bytes, each aligned to 64. So a file
// is written in one pass without a second copy of the state in memory. If this would exceed the capacity of a
// FlatBuffer, the bytes go to a second file, `<checkpoint>.data`, at the offsets that the tensors declare.
//
// Two files cannot be replaced in one step. So that a crash at any moment leaves a state that can be loaded,
// the data file ends with an identity, a digest of the data, which each external tensor names in its
// doc_string; the old data file is kept as `<checkpoint>.data.old` until the checkpoint has been replaced as
// well; and the reader takes whichever of the two the checkpoint names, and rejects a data file of another
// checkpoint. Files of other writers name no identity; they match a data file without one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "state/checkpoint_state.h"

namespace ortrain {

class MappedFile;

struct CheckpointIo {
  // A FlatBuffer's offsets are 31 bits wide.
  static constexpr size_t kLargestFile = (size_t{1} << 31) - 1;

  // Throws kNoSuchFile; kFail if it is not a checkpoint of version 2 or is damaged; kNotImplemented.
  static std::shared_ptr<CheckpointState> read(const std::filesystem::path& path);
  // The same, with the values as views of the mapped file (CheckpointState::map).
  static std::shared_ptr<CheckpointState> map(const std::filesystem::path& path);
  // The same as read() from memory; checkpoints with external data are rejected.
  static std::shared_ptr<CheckpointState> read(const void* data, size_t bytes);

  // Throws kFail with the system's reason, and then leaves existing files unchanged. If the file would be
  // larger than `largest_file`, a second file is written.
  static void write(const CheckpointState& state, const std::filesystem::path& path,
                    bool include_optimizer_state, size_t largest_file = kLargestFile);

 private:
  enum class Values { kCopied, kMapped };
  static std::shared_ptr<CheckpointState> open(const std::filesystem::path& path, Values values);
  // `file` is null for a checkpoint in memory.
  static std::shared_ptr<CheckpointState> read(const std::byte* data, size_t bytes,
                                               const std::filesystem::path& path,
                                               const std::shared_ptr<const MappedFile>& file, Values values);
  // Makes the tensors, which are views of the files, keep the files open.
  static void keep_mapped(CheckpointState& state, std::vector<std::shared_ptr<const MappedFile>> files);
};

}  // namespace ortrain
