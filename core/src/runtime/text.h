// Text for messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ortrain {

// True if the bytes are valid UTF-8.
bool is_utf8(const std::string& text);

// Describes unexpected contents of a file by its first bytes: "a PNG image", "1941 bytes that begin ...".
std::string describe_content(const void* data, size_t bytes);

// '; did you mean "fc1.weight" or "fc1.bias"?' with the known names that are most similar to `name`; "" if
// none is.
std::string suggestion(const std::string& name, const std::vector<std::string>& known);

// '"a", "b" and 3 more': the first `most` of the names.
std::string quoted_list(const std::vector<std::string>& names, size_t most = 8);

}  // namespace ortrain
