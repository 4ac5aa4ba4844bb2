// The domain of operators that only the passes of a session create. These operators never appear in a file,
// and their definition may change.
#pragma once

namespace ortrain {

inline constexpr const char* kSessionDomain = "ortrain.session";

}  // namespace ortrain
