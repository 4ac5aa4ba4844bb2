// What the fuzz targets share. A target reads bytes and must not end the process, hang, or use more memory
// than its limits; the only exception that may leave the library is ortrain::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "model_mutator.h"
#include "runtime/value.h"

extern "C" {
// What libFuzzer and driver.cpp call.
int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// What libFuzzer offers to mutators.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
}

namespace ortrain::fuzz {

// A folder of this process, removed when it ends. It has kExternalFile in it.
const std::filesystem::path& scratch();

// Limits the memory of the process, so that the library sees allocations fail. Sanitizers bring their own
// limit.
void limit_memory();

// Ends the process: what the library did is wrong, though it did not crash.
[[noreturn]] void wrong(const std::string& what);

// The bytes of a message, or nothing if they are more than `max_size`.
template <typename Message>
size_t store(const Message& message, uint8_t* data, size_t max_size) {
  const size_t size = message.ByteSizeLong();
  if (size == 0 || size > max_size) return 0;
  message.SerializeWithCachedSizesToArray(data);
  return size;
}

// Changes a message that is parsed from `data`: `change` gets it and a source of random numbers. Bytes that
// cannot be parsed are changed as bytes, and so is one in thirty messages.
template <typename Message, typename Change>
size_t mutate_message(uint8_t* data, size_t size, size_t max_size, unsigned seed, Change&& change) {
  Random random(seed + 1);
  Message message;
  if (message.ParseFromArray(data, static_cast<int>(size)) && below(random, 30) != 0) {
    // several changes at once now and then
    for (size_t n = below(random, 4) == 0 ? 1 + below(random, 4) : 1; n > 0; --n) change(message, random);
    if (const size_t stored = store(message, data, max_size)) return stored;
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

// All operators of the library, as domains and types.
const std::vector<std::pair<std::string, std::string>>& operators();

// Values for inputs of a model: small ones mostly, and special ones. Dimensions of one name agree.
class InputMaker {
 public:
  explicit InputMaker(uint32_t seed) : random_(seed + 1) {}

  // Nothing if the value would have more elements than are worth the time, or a type that the library does
  // not hold.
  std::optional<Value> make(const ValueInfo& info);

 private:
  std::optional<Tensor> make_tensor(const ValueInfo& info);
  int64_t dimension(const Dim& dim);

  Random random_;
  std::map<std::string, int64_t> symbols_;
};

// Reads every byte, so that sanitizers notice those that are not there.
void read_all(const Value& value);

}  // namespace ortrain::fuzz
