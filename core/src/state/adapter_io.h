// Adapters (LoRA): files of named tensors that a run gives to a model's inputs or in place of its
// initializers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor.h"

namespace ortrain {

struct Adapter {
  int32_t version = 0, model_version = 0;  // the program decides what they mean
  std::vector<std::pair<std::string, Tensor>> parameters;
};

// Throws kNoSuchFile, kFail (not an adapter, truncated or damaged) and kNotImplemented (a newer version of
// the format, elements of a type that is not supported).
Adapter read_adapter(const std::filesystem::path& path);
Adapter read_adapter(const void* data, size_t bytes);

// Throws kInvalidArgument if a parameter has no name, if two have the same name, or if one is of strings,
// which the format does not have.
void check_adapter(const Adapter& adapter);

// The file of an adapter, which is checked. Throws kFail if it would be larger than 2 GB.
std::string write_adapter(const Adapter& adapter);
void write_adapter(const Adapter& adapter, const std::filesystem::path& path);

}  // namespace ortrain
