#include "session/program_cache.h"

#include <algorithm>

namespace ortrain {

Program* ProgramCache::find(std::span<const Tensor* const> inputs, int variant) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
    return e.variant == variant && std::equal(inputs.begin(), inputs.end(), e.inputs.begin(), e.inputs.end(),
                                              [](const Tensor* t, const auto& key) {
                                                return t->dtype() == key.first && t->shape() == key.second;
                                              });
  });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return entries_.front().program.get();
}

Program& ProgramCache::add(std::span<const Tensor* const> inputs, int variant,
                           std::unique_ptr<Program> program) {
  Entry entry{{}, variant, std::move(program)};
  for (const Tensor* t : inputs) entry.inputs.emplace_back(t->dtype(), t->shape());
  entries_.push_front(std::move(entry));
  if (entries_.size() > kCapacity) entries_.pop_back();
  return *entries_.front().program;
}

}  // namespace ortrain
