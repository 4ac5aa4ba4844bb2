// A record of what a program asks the file system to do in one folder, and what a power cut may leave of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ortrain::faults {

// Files are numbered, since their names change.
struct Event {
  enum Kind { kCreate, kWrite, kSync, kRename, kLink, kUnlink, kSyncFolder } kind;
  int file = -1;
  std::string name, to;  // of the folder's entries
  std::string bytes;     // that were written at the end
};

// Files by name.
using Files = std::map<std::string, std::string>;

// Records what `work` does in the folder.
std::vector<Event> record(const std::filesystem::path& folder, const std::function<void()>& work);

// Calls f with every state that may be found after a power cut that follows the first `done` events. What was
// not synced may be lost: of each file's bytes all, half, none, or those from one of `cuts` on; of the
// changes of names any.
void for_remains(const Files& before, const std::vector<Event>& events, size_t done,
                 const std::vector<size_t>& cuts, const std::function<void(const Files&)>& f);

}  // namespace ortrain::faults
