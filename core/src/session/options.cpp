#include "session/options.h"

#include <charconv>
#include <cstdint>
#include <string_view>

#include "runtime/error.h"

namespace ortrain {

size_t memory_budget(const SessionOptions& options) {
  constexpr const char* kKey = "ortrain.memory_budget";
  const auto entry = options.config.find(kKey);
  if (entry == options.config.end()) return 0;
  const std::string& text = entry->second;
  std::string_view digits = text;
  uint64_t unit = 1;
  for (const auto& [suffix, bytes] :
       {std::pair('K', uint64_t{1} << 10), {'M', uint64_t{1} << 20}, {'G', uint64_t{1} << 30}})
    if (!digits.empty() && digits.back() == suffix) {
      unit = bytes;
      digits.remove_suffix(1);
      break;
    }
  uint64_t count = 0, total = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  require(error == std::errc{} && end == digits.data() + digits.size() && count > 0 &&
              !__builtin_mul_overflow(count, unit, &total) && total <= SIZE_MAX,
          ErrorCode::kInvalidArgument, "session config entry ", kKey,
          ": expected a number of bytes above 0 such as 64M (suffixes K, M and G), found \"", text, "\"");
  return static_cast<size_t>(total);
}

bool flush_denormals(const SessionOptions& options) {
  const auto entry = options.config.find(kDenormalsKey);
  if (entry == options.config.end()) return false;
  require(entry->second == "0" || entry->second == "1", ErrorCode::kInvalidArgument, "session config entry ",
          kDenormalsKey, ": expected \"0\" or \"1\", found \"", entry->second, "\"");
  return entry->second == "1";
}

}  // namespace ortrain
