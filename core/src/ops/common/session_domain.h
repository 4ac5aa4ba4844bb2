// The domain of operators that only session passes make: they are in no file, and their form may change.
#pragma once

namespace ortrain {

inline constexpr const char* kSessionDomain = "ortrain.session";

}  // namespace ortrain
