// The domain of operators that only session passes create: they are never in a file, and their form may
// change.
#pragma once

namespace ortrain {

inline constexpr const char* kSessionDomain = "ortrain.session";

}  // namespace ortrain
