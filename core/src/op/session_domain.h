// The domain of operators that only session passes create: they never appear in a file, and their definition
// may change.
#pragma once

namespace ortrain {

inline constexpr const char* kSessionDomain = "ortrain.session";

}  // namespace ortrain
