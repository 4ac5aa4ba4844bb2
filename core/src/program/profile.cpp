#include "program/profile.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "runtime/path.h"
#include "runtime/system.h"

namespace ortrain {

namespace {

// The text as a quoted JSON string.
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

void Profile::session_event(std::string name, Clock::time_point start, Clock::time_point end) {
  const auto since = [](Clock::duration d) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
  };
  origin_ = std::min(origin_, start);
  session_events_.push_back({std::move(name), "", since(start - origin_), since(end - start)});
}

std::string Profile::session_trace() const {
  const std::string process = std::to_string(system::process_id());
  std::string out = "[";
  const auto add = [&](const char* category, const std::string& name, int64_t start, int64_t duration,
                       const std::string& arguments) {
    out += out.size() == 1 ? "\n" : ",\n";
    out += "{\"cat\" : \"" + std::string(category) + "\",\"pid\" :" + process + ",\"tid\" :" + process +
           ",\"dur\" :" + std::to_string(duration / 1000) + ",\"ts\" :" + std::to_string(start / 1000) +
           ",\"ph\" : \"X\",\"name\" :" + quoted(name) + ",\"args\" : {" + arguments + "}}";
  };
  for (const Event& e : session_events_) add("Session", e.type, e.start, e.duration, "");
  for (size_t r = 0; r < runs_.size(); ++r) {
    const size_t end = r + 1 < runs_.size() ? runs_[r + 1].first : events_.size();
    for (size_t i = runs_[r].first; i < end; ++i) {
      const Event& e = events_[i];
      add("Node", e.name + "_kernel_time", e.start, e.duration,
          "\"op_name\" : " + quoted(e.type) + ",\"provider\" : \"CPUExecutionProvider\",\"node_index\" : \"" +
              std::to_string(i - runs_[r].first) + "\"");
    }
    if (runs_[r].first == end) continue;
    const int64_t start = events_[runs_[r].first].start;
    const Event& last = events_[end - 1];
    const std::string memory = "\"arena_bytes\" : \"" + std::to_string(runs_[r].arena) +
                               "\",\"live_bytes\" : \"" + std::to_string(runs_[r].live) + "\"";
    add("Session", runs_[r].what, start, last.start + last.duration - start, memory);
  }
  return out + "\n]\n";
}

std::string profile_path(const std::string& prefix) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  const std::tm local = system::local_time(seconds);
  char time[32], fraction[8];
  std::strftime(time, sizeof time, "%Y-%m-%d_%H-%M-%S", &local);
  std::snprintf(fraction, sizeof fraction, "_%03d", static_cast<int>(milliseconds));
  const std::string base = prefix + "_" + time + fraction;
  std::string path = base + ".json";
  for (int i = 1; std::filesystem::exists(from_utf8(path)); ++i)
    path = base + "_" + std::to_string(i) + ".json";
  return path;
}

}  // namespace ortrain
