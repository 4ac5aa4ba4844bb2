// Registry: items that static objects register before main, by key. Duplicate keys are rejected when the
// registry is first read: during static initialization an exception could only terminate the process.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/error.h"

namespace ortrain {

// The line that registers an item. std::source_location would be a constant for each line, with two addresses
// for the loader to relocate: 72 bytes in place of 12.
struct SourcePlace {
  const char* file;
  unsigned line;

  static constexpr SourcePlace here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};

template <typename Key, typename Item>
class Registry {
 public:
  // `name` identifies the item in messages: "pass 'fuse_gelu'".
  void add(Key key, Item item, std::string name, SourcePlace where) {
    const auto [at, fresh] = entries_.try_emplace(key, Entry{std::move(item), place(where)});
    if (!fresh) duplicates_ += concat("\n  ", name, " in ", at->second.place, " and in ", place(where));
  }

  // The item, or null. Throws kFail, naming every duplicate key and both places.
  const Item* find(const Key& key) const {
    reject_duplicates();
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second.item;
  }

  // Calls f for every item, sorted by key. Throws as `find` does.
  template <typename F>
  void each(F&& f) const {
    reject_duplicates();
    for (const auto& [key, entry] : entries_) f(entry.item);
  }

 private:
  struct Entry {
    Item item;
    std::string place;
  };

  // File and line; the path is relative to the sources.
  static std::string place(SourcePlace where) {
    std::string_view file = where.file;
    constexpr std::string_view kSources = "core/src/";
    if (const size_t at = file.rfind(kSources); at != std::string_view::npos)
      file.remove_prefix(at + kSources.size());
    return concat(file, ":", where.line);
  }

  void reject_duplicates() const {
    if (!duplicates_.empty()) [[unlikely]]
      fail(ErrorCode::kFail, "this build of the library has duplicate definitions:", duplicates_);
  }

  std::map<Key, Entry> entries_;
  std::string duplicates_;
};

}  // namespace ortrain
