#include "recorder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace ortrain::faults {
namespace {

constexpr int kFolder = -2;

// What is being recorded; null: nothing.
struct Recording {
  std::filesystem::path folder;
  std::vector<Event> events;
  std::map<std::string, int> names;  // the files of the folder
  std::map<int, int> open;           // descriptor → file, or kFolder
  int files = 0;

  bool here(const std::filesystem::path& path) const { return path.parent_path() == folder; }
  int file_of(const std::string& name) const {
    const auto found = names.find(name);
    return found == names.end() ? -1 : found->second;
  }
};
Recording* recording = nullptr;

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

std::string name_of(const char* path) { return std::filesystem::path(path).filename().string(); }

// A file of the model: what it holds, and what of it is on the disk.
struct Content {
  std::string now, synced;
};

}  // namespace

std::vector<Event> record(const std::filesystem::path& folder, const std::function<void()>& work) {
  Recording r;
  r.folder = folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    r.names[entry.path().filename().string()] = -1;
  for (auto& [name, file] : r.names) file = r.files++;
  recording = &r;
  work();
  recording = nullptr;
  return r.events;
}

void for_remains(const Files& before, const std::vector<Event>& events, size_t done,
                 const std::vector<size_t>& cuts, const std::function<void(const Files&)>& f) {
  std::map<int, Content> contents;
  std::map<std::string, int> names;
  std::vector<const Event*> pending;  // changes of names since the folder was synced
  for (const auto& [name, content] : before) {
    const int file = static_cast<int>(names.size());
    names[name] = file;
    contents[file] = {content, content};
  }
  const auto change = [](std::map<std::string, int>& entries, const Event& e) {
    if (e.kind == Event::kUnlink || e.kind == Event::kRename) entries.erase(e.name);
    if (e.kind == Event::kCreate) entries[e.name] = e.file;
    if (e.kind == Event::kRename || e.kind == Event::kLink) entries[e.to] = e.file;
  };
  for (size_t i = 0; i < done; ++i) {
    const Event& e = events[i];
    if (e.kind == Event::kWrite) {
      contents[e.file].now += e.bytes;
    } else if (e.kind == Event::kSync) {
      contents[e.file].synced = contents[e.file].now;
    } else if (e.kind == Event::kSyncFolder) {
      for (const Event* change_made : pending) change(names, *change_made);
      pending.clear();
    } else {
      pending.push_back(&e);
    }
  }
  for (size_t chosen = 0; chosen < size_t{1} << pending.size(); ++chosen) {
    std::map<std::string, int> entries = names;
    for (size_t i = 0; i < pending.size(); ++i)
      if (chosen >> i & 1) change(entries, *pending[i]);
    // With the length of each file, from what of it was synced and what was written.
    const auto cut = [&](const std::function<size_t(size_t, size_t)>& length) {
      Files files;
      for (const auto& [name, file] : entries) {
        const Content& content = contents[file];
        files[name] = content.now.substr(0, length(content.synced.size(), content.now.size()));
      }
      f(files);
    };
    for (const size_t kept : {0, 1, 2})
      cut([&](size_t synced, size_t now) { return synced + (now - synced) * kept / 2; });
    for (const size_t at : cuts)
      if (std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
            const Content& content = contents[entry.second];
            return content.synced.size() < at && at < content.now.size();
          }))
        cut([&](size_t synced, size_t now) { return std::clamp(at, synced, now); });
  }
}

}  // namespace ortrain::faults

using namespace ortrain::faults;

// In place of those of libc.
extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const int fd = real(path, flags, mode);
  if (fd < 0 || recording == nullptr) return fd;
  Recording& r = *recording;
  if (flags & O_DIRECTORY && path == r.folder) {
    r.open[fd] = kFolder;
  } else if (r.here(path) && flags & O_CREAT) {
    r.open[fd] = r.names[name_of(path)] = r.files;
    r.events.push_back({Event::kCreate, r.files++, name_of(path), "", ""});
  }
  return fd;
}

int close(int fd) {
  static auto* const real = next<int(int)>("close");
  if (recording != nullptr) recording->open.erase(fd);
  return real(fd);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  const ssize_t written = real(fd, from, bytes);
  if (recording != nullptr && written > 0 && recording->open.contains(fd))
    recording->events.push_back({Event::kWrite, recording->open[fd], "", "",
                                 std::string(static_cast<const char*>(from), static_cast<size_t>(written))});
  return written;
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  if (recording != nullptr && recording->open.contains(fd)) {
    const int file = recording->open[fd];
    recording->events.push_back({file == kFolder ? Event::kSyncFolder : Event::kSync, file, "", "", ""});
  }
  return real(fd);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("rename");
  const int result = real(from, to);
  if (result == 0 && recording != nullptr && recording->here(from)) {
    const int file = recording->file_of(name_of(from));
    recording->names.erase(name_of(from));
    recording->names[name_of(to)] = file;
    recording->events.push_back({Event::kRename, file, name_of(from), name_of(to), ""});
  }
  return result;
}

int link(const char* from, const char* to) noexcept {
  static auto* const real = next<int(const char*, const char*)>("link");
  const int result = real(from, to);
  if (result == 0 && recording != nullptr && recording->here(from)) {
    const int file = recording->names[name_of(to)] = recording->file_of(name_of(from));
    recording->events.push_back({Event::kLink, file, name_of(from), name_of(to), ""});
  }
  return result;
}

int unlink(const char* path) noexcept {
  static auto* const real = next<int(const char*)>("unlink");
  const int result = real(path);
  if (result == 0 && recording != nullptr && recording->here(path)) {
    const int file = recording->file_of(name_of(path));
    recording->names.erase(name_of(path));
    recording->events.push_back({Event::kUnlink, file, name_of(path), "", ""});
  }
  return result;
}

}  // extern "C"
