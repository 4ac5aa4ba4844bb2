// RowSet: a set of rows of a table, one bit each, in memory that others own.
//
// Bits, because a step that reads a few of a million rows then finds them in their order in microseconds, and
// because the memory is negligible beside the table, however short its rows are.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/tensor.h"

namespace ortrain {

class RowSet {
 public:
  // The memory of a set: a word that says whether it has all rows, then the bits.
  static int64_t words_of(int64_t rows) { return 1 + (rows + kBits - 1) / kBits; }
  // A tensor with a set of all rows.
  static Tensor of_all(int64_t rows) {
    Tensor memory(DType::kInt64, {words_of(rows)});
    RowSet(memory.data<int64_t>(), rows).add_all();
    return memory;
  }

  RowSet(int64_t* memory, int64_t rows)
      : all_(reinterpret_cast<uint64_t*>(memory)), bits_(all_ + 1), words_(words_of(rows) - 1) {}

  bool has_all() const { return *all_ != 0; }
  void add_all() {
    clear();
    *all_ = 1;
  }
  void clear() {
    *all_ = 0;
    std::fill_n(bits_, words_, 0);
  }
  void add(int64_t row) { bits_[row / kBits] |= uint64_t{1} << (row % kBits); }

  // The number of words with bits of rows: threads divide these words among them. count() is the number of
  // rows in the set, unless it is a set of all rows.
  int64_t words() const { return words_; }
  int64_t count() const {
    int64_t found = 0;
    for (int64_t w = 0; w < words_; ++w) found += std::popcount(bits_[w]);
    return found;
  }
  // Calls f(first, end) for neighbouring rows of the set in the words [from, to), in ascending order.
  template <typename F>
  void each_run(int64_t from, int64_t to, F&& f) const {
    for (int64_t w = from; w < to; ++w) {
      uint64_t rest = bits_[w];
      while (rest != 0) {
        const int first = std::countr_zero(rest);
        const int length = std::countr_one(rest >> first);
        f(w * kBits + first, w * kBits + first + length);
        if (first + length == kBits) break;
        rest &= ~uint64_t{0} << (first + length);
      }
    }
  }

 private:
  static constexpr int64_t kBits = 64;

  uint64_t *all_, *bits_;
  int64_t words_;
};

}  // namespace ortrain
