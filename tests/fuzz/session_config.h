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

// Options of a run that ends when it has taken two seconds: a model may ask for more time than anybody has.
const RunOptions& short_run();

// Adds an entry, or removes one. Entries that name folders are left alone.
void mutate_config(Config& config, Random& random);

}  // namespace ortrain::fuzz
