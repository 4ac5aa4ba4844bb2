// Calls of the system that fail on demand: the n-th of a kind, counted from arm() on.
#pragma once

#include <cstdint>

namespace ortrain::faults {

enum Kind { kAllocation, kOpen, kRead, kWrite, kSync, kMap, kRename, kLink, kUnlink, kKinds };
inline constexpr const char* kNames[kKinds] = {"allocation", "open",   "read", "write", "sync",
                                               "map",        "rename", "link", "unlink"};

// Between begin() and end(), the one of the calls of `kind` that comes after `skipped` others will fail.
void arm(Kind kind, int64_t skipped);
// None will; they are only counted.
void arm();
void begin();
void end();
int64_t count(Kind kind);
// How many allocations there were before the rename with this number, which must have been made.
int64_t allocations_before_rename(int64_t rename);
inline constexpr int64_t kMostRenames = 100;
bool fired();

}  // namespace ortrain::faults
