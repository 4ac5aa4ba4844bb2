// ProgramCache: the compiled Programs of one model, by the types and shapes of its inputs.
#pragma once

#include <list>
#include <memory>
#include <span>
#include <vector>

#include "program/program.h"

namespace ortrain {

class ProgramCache {
 public:
  // The Program for these inputs and this variant of the model, or null.
  Program* find(std::span<const Tensor* const> inputs, int variant);
  // Adds one; the least recently used one goes when there are more than kCapacity.
  Program& add(std::span<const Tensor* const> inputs, int variant, std::unique_ptr<Program> program);

 private:
  static constexpr size_t kCapacity = 8;
  struct Entry {
    std::vector<std::pair<DType, Shape>> inputs;
    int variant;
    std::unique_ptr<Program> program;
  };
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace ortrain
