// Paths as text. Text in messages, models and options is UTF-8, while std::filesystem takes the text of a
// path to be of the system's code page where there is one.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ortrain {

std::string to_utf8(const std::filesystem::path& path);
std::filesystem::path from_utf8(std::string_view text);

// The path with ASCII characters added to its name.
std::filesystem::path with_suffix(std::filesystem::path path, const char* suffix);

}  // namespace ortrain
