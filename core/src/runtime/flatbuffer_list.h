// Lists in FlatBuffers that have passed the verifier.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstring>
#include <type_traits>

namespace ortrain {

// Calls f with each item of a list that may be missing. The verifier checks only the alignment of a list's
// length, not that of wider numbers in it.
template <typename T, typename F>
void for_each(const flatbuffers::Vector<T>* items, F&& f) {
  for (flatbuffers::uoffset_t i = 0; items != nullptr && i < items->size(); ++i) {
    if constexpr (std::is_arithmetic_v<T>) {
      T item;
      std::memcpy(&item, items->Data() + i * sizeof item, sizeof item);
      f(flatbuffers::EndianScalar(item));
    } else {
      f(items->Get(i));
    }
  }
}

}  // namespace ortrain
