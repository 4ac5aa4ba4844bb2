#include "runtime/text.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "runtime/error.h"

namespace ortrain {

namespace {

// The number of insertions, deletions and replacements between two strings, ignoring case.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = std::tolower(static_cast<unsigned char>(a[i - 1])) ==
                        std::tolower(static_cast<unsigned char>(b[j - 1]));
      const size_t replaced = diagonal + (same ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

bool is_utf8(const std::string& text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const auto* end = p + text.size();
  while (p < end) {
    int more = -1;  // bytes that follow the first
    if (*p < 0x80)
      more = 0;
    else if (*p >= 0xC2 && *p < 0xE0)
      more = 1;
    else if (*p >= 0xE0 && *p < 0xF0)
      more = 2;
    else if (*p >= 0xF0 && *p < 0xF5)
      more = 3;
    if (more < 0 || end - p <= more) return false;
    for (int i = 1; i <= more; ++i)
      if ((p[i] & 0xC0) != 0x80) return false;
    p += more + 1;
  }
  return true;
}

std::string describe_content(const void* data, size_t bytes) {
  if (bytes == 0) return "nothing (0 bytes)";
  const std::string_view start(static_cast<const char*>(data), std::min<size_t>(bytes, 8));
  const auto begins = [&](std::string_view mark) { return start.substr(0, mark.size()) == mark; };
  if (start.size() == 8 && start.substr(4) == "ODTC")
    return concat("a checkpoint file of ", counted(bytes, "byte"));
  if (start.size() == 8 && start.substr(4) == "ORTM") return "a model in ORT format";
  if (begins("\x89PNG")) return "a PNG image";
  if (begins("\xFF\xD8\xFF")) return "a JPEG image";
  if (begins("PK\x03\x04")) return "a zip archive";
  if (begins("\x1F\x8B")) return "a gzip archive";
  if (begins("\x89HDF\r\n\x1A\n")) return "an HDF5 file";
  if (begins("%PDF-")) return "a PDF document";
  // An ONNX file starts with its IR version, usually followed by the producer's name.
  if (start.size() > 3 && start[0] == 8 && start[1] > 0 && start[1] < 32 &&
      (start[2] == 0x12 || start[2] == 0x3A))
    return concat("probably an ONNX model, ", counted(bytes, "byte"));
  constexpr const char* digits = "0123456789abcdef";
  std::string shown;
  bool text = true;
  for (const char c : start) {
    const auto byte = static_cast<unsigned char>(c);
    text = text && ((byte >= 0x20 && byte < 0x7F) || c == '\n' || c == '\t' || c == '\r');
    if (!shown.empty()) shown += " ";
    shown += std::string{digits[byte >> 4], digits[byte & 15]};
  }
  return concat(counted(bytes, "byte"), " that begin ", text ? "like text, with " : "with ", shown);
}

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
  std::vector<std::pair<size_t, std::string>> near;
  const size_t limit = std::max<size_t>(2, name.size() / 3);
  for (const std::string& candidate : known) {
    // For long lists of long names: the difference in length rules out most of them.
    const size_t shorter = std::min(candidate.size(), name.size()),
                 longer = std::max(candidate.size(), name.size());
    const bool part = shorter > 2 && (candidate.find(name) != std::string::npos ||
                                      name.find(candidate) != std::string::npos);
    if (!part && longer - shorter > limit) continue;
    if (const size_t distance = edit_distance(name, candidate); part || distance <= limit)
      near.emplace_back(distance, candidate);
  }
  std::sort(near.begin(), near.end());
  std::string out;
  for (size_t i = 0; i < near.size() && i < 3; ++i)
    out += (i == 0 ? "; did you mean \"" : "\" or \"") + near[i].second;
  return out.empty() ? out : out + "\"?";
}

std::string quoted_list(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t n = 0; n < names.size() && n < most; ++n) text += concat(n ? ", " : "", "\"", names[n], "\"");
  if (names.size() > most) text += concat(" and ", names.size() - most, " more");
  return text;
}

}  // namespace ortrain
