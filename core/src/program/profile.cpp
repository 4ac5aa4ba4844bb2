#include "program/profile.h"

#include <algorithm>
#include <cstdio>

namespace ortrain {

namespace {

// A quoted JSON string.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char ch : text) {
    if (ch == '"' || ch == '\\') {
      out += '\\';
      out += ch;
    } else if (static_cast<unsigned char>(ch) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(ch));
      out += code;
    } else {
      out += ch;
    }
  }
  return out + '"';
}

std::string microseconds(int64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(nanoseconds) / 1e3);
  return text;
}

std::string event(const std::string& name, const std::string& category, int thread, int64_t start,
                  int64_t duration, const std::string& arguments) {
  return "{\"ph\": \"X\", \"pid\": 1, \"tid\": " + std::to_string(thread) + ", \"name\": " + quoted(name) +
         ", \"cat\": " + quoted(category) + ", \"ts\": " + microseconds(start) +
         ", \"dur\": " + microseconds(duration) + ", \"args\": {" + arguments + "}}";
}

}  // namespace

void Profile::begin(std::string what) { runs_.push_back({std::move(what), events_.size()}); }

void Profile::memory(size_t arena, size_t live) {
  runs_.back().arena = std::max(runs_.back().arena, arena);
  runs_.back().live = std::max(runs_.back().live, live);
}

void Profile::record(const std::string& type, const std::string& name, Clock::time_point start,
                     Clock::time_point end) {
  const auto since = [](Clock::duration d) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
  };
  events_.push_back({type, name, since(start - origin_), since(end - start)});
}

std::string Profile::chrome_trace() const {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  const char* separator = "\n";
  for (size_t r = 0; r < runs_.size(); ++r) {
    const size_t end = r + 1 < runs_.size() ? runs_[r + 1].first : events_.size();
    if (runs_[r].first == end) continue;
    const int64_t start = events_[runs_[r].first].start;
    const std::string number = "\"run\": " + std::to_string(r);
    out += separator;
    const std::string memory = ", \"arena_bytes\": " + std::to_string(runs_[r].arena) +
                               ", \"live_bytes\": " + std::to_string(runs_[r].live);
    out += event(runs_[r].what, "run", 0, start, events_[end - 1].start + events_[end - 1].duration - start,
                 number + memory);
    separator = ",\n";
    for (size_t i = runs_[r].first; i < end; ++i) {
      const Event& e = events_[i];
      out += separator;
      out += event(e.type, runs_[r].what, 1, e.start, e.duration, number + ", \"node\": " + quoted(e.name));
    }
  }
  return out + "\n]}\n";
}

}  // namespace ortrain
