// Options of the sessions that targets create.
#pragma once

#include "fuzz_case.pb.h"
#include "model_mutator.h"
#include "session/options.h"

namespace ortrain::fuzz {

using Config = google::protobuf::RepeatedPtrField<ConfigEntry>;

// The options of a session with these entries, on one thread. Throws as a caller's options would.
SessionOptions session_options(const Config& config);

// Adds an entry, or removes one. Entries that name folders are left alone.
void mutate_config(Config& config, Random& random);

}  // namespace ortrain::fuzz
