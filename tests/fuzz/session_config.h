// Options of the sessions that targets create.
#pragma once

#include "fuzz_case.pb.h"
#include "model_mutator.h"
#include "session/options.h"

namespace ortrain::fuzz {

using Config = google::protobuf::RepeatedPtrField<ConfigEntry>;

// The options of a session on one thread that runs small models only: large ones take time and find no more.
SessionOptions small_session();

// The same with these entries. Throws as a caller's options would.
SessionOptions session_options(const Config& config);

// Adds an entry, or removes one. Entries that name folders are left alone.
void mutate_config(Config& config, Random& random);

}  // namespace ortrain::fuzz
