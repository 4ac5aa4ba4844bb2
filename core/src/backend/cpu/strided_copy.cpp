#include "backend/cpu/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/tuning.h"
#include "runtime/error.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr size_t kMaxLoops = 40;
constexpr int64_t kLine = 64;  // bytes of a cache line

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

template <typename T>
void copy_elements(const std::byte* source, int64_t source_step, std::byte* target, int64_t target_step,
                   int64_t count) {
  constexpr int64_t kWidth = sizeof(T);
  if (source_step == 0) {
    const T value = load<T>(source);
    if (target_step == kWidth)
      for (int64_t i = 0; i < count; ++i) store(target + i * kWidth, value);
    else
      for (int64_t i = 0; i < count; ++i) store(target + i * target_step, value);
  } else if (target_step == kWidth) {
    for (int64_t i = 0; i < count; ++i) store(target + i * kWidth, load<T>(source + i * source_step));
  } else {
    for (int64_t i = 0; i < count; ++i) store(target + i * target_step, load<T>(source + i * source_step));
  }
}

// Copies a run of at least `kStep` bytes, in steps of that size; the last step overlaps the one before.
template <int64_t kStep>
void copy_run(const std::byte* source, std::byte* target, int64_t run) {
  for (int64_t b = 0; b + kStep < run; b += kStep) std::memcpy(target + b, source + b, kStep);
  std::memcpy(target + run - kStep, source + run - kStep, kStep);
}

// Copies runs, short ones without a call of memcpy.
void copy_runs(const std::byte* source, int64_t source_step, std::byte* target, int64_t target_step,
               int64_t run, int64_t count) {
  const auto each = [&](auto&& copy) {
    for (int64_t i = 0; i < count; ++i) copy(source + i * source_step, target + i * target_step);
  };
  if (run > 128 || run < 8)
    each([=](const std::byte* s, std::byte* t) { std::memcpy(t, s, static_cast<size_t>(run)); });
  else if (run >= 16)
    each([=](const std::byte* s, std::byte* t) { copy_run<16>(s, t, run); });
  else
    each([=](const std::byte* s, std::byte* t) { copy_run<8>(s, t, run); });
}

// target[r][c] = source[c][r] for r < rows, c < columns. The rows of the target are `target_step` bytes
// apart, those of the source `source_step`.
template <typename T>
void transpose_block(const std::byte* source, int64_t source_step, std::byte* target, int64_t target_step,
                     int64_t rows, int64_t columns) {
  constexpr int64_t kWidth = sizeof(T);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      store(target + r * target_step + c * kWidth, load<T>(source + c * source_step + r * kWidth));
}

// Transposes a square of one 16-byte register per side (vector types of GCC and Clang, which every target of
// theirs has).
inline void transpose_square(uint32_t, const std::byte* source, int64_t source_step, std::byte* target,
                             int64_t target_step) {
  using V [[gnu::vector_size(16)]] = uint32_t;
  const V a = load<V>(source), b = load<V>(source + source_step), c = load<V>(source + 2 * source_step),
          d = load<V>(source + 3 * source_step);
  const V ac_low = __builtin_shufflevector(a, c, 0, 4, 1, 5),
          ac_high = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  const V bd_low = __builtin_shufflevector(b, d, 0, 4, 1, 5),
          bd_high = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  store<V>(target, __builtin_shufflevector(ac_low, bd_low, 0, 4, 1, 5));
  store<V>(target + target_step, __builtin_shufflevector(ac_low, bd_low, 2, 6, 3, 7));
  store<V>(target + 2 * target_step, __builtin_shufflevector(ac_high, bd_high, 0, 4, 1, 5));
  store<V>(target + 3 * target_step, __builtin_shufflevector(ac_high, bd_high, 2, 6, 3, 7));
}

inline void transpose_square(uint64_t, const std::byte* source, int64_t source_step, std::byte* target,
                             int64_t target_step) {
  using V [[gnu::vector_size(16)]] = uint64_t;
  const V a = load<V>(source), b = load<V>(source + source_step);
  store<V>(target, __builtin_shufflevector(a, b, 0, 2));
  store<V>(target + target_step, __builtin_shufflevector(a, b, 1, 3));
}

// Interleaving the first half of the rows with the second, as many times as a row number has bits, moves the
// bits of row numbers to those of columns.
inline void transpose_square(uint8_t, const std::byte* source, int64_t source_step, std::byte* target,
                             int64_t target_step) {
  using V [[gnu::vector_size(16)]] = uint8_t;
  V rows[16], mixed[16];
  for (int64_t i = 0; i < 16; ++i) rows[i] = load<V>(source + i * source_step);
  const auto interleave = [](const V* from, V* to) {
    for (int64_t i = 0; i < 8; ++i) {
      to[2 * i] = __builtin_shufflevector(from[i], from[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                          22, 7, 23);
      to[2 * i + 1] = __builtin_shufflevector(from[i], from[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                              29, 14, 30, 15, 31);
    }
  };
  for (int64_t round = 0; round < 2; ++round) {
    interleave(rows, mixed);
    interleave(mixed, rows);
  }
  for (int64_t i = 0; i < 16; ++i) store<V>(target + i * target_step, rows[i]);
}

// Transposes a block of one cache line per side. The block goes through a small buffer, so that every line of
// the source is read once and every line of the target written once: with power-of-two steps they would evict
// each other from the cache.
template <typename T>
void transpose_lines(const std::byte* source, int64_t source_step, std::byte* target, int64_t target_step) {
  constexpr int64_t kWidth = sizeof(T), kBlock = kLine / kWidth, kSide = 16 / kWidth;
  alignas(kLine) std::byte block[kBlock * kLine];
  for (int64_t c = 0; c < kBlock; c += kSide)
    for (int64_t r = 0; r < kBlock; r += kSide)
      transpose_square(T{}, source + c * source_step + r * kWidth, source_step,
                       block + r * kLine + c * kWidth, kLine);
  for (int64_t r = 0; r < kBlock; ++r) std::memcpy(target + r * target_step, block + r * kLine, kLine);
}

// Transposes a strip of `rows` rows of the target, all columns.
template <typename T>
void transpose_strip(const std::byte* source, int64_t source_step, std::byte* target, int64_t target_step,
                     int64_t rows, int64_t columns) {
  constexpr int64_t kWidth = sizeof(T), kBlock = kLine / kWidth;
  int64_t c = 0;
  if constexpr (sizeof(T) != 2) {
    if (rows == kBlock)
      for (; c + kBlock <= columns; c += kBlock)
        transpose_lines<T>(source + c * source_step, source_step, target + c * kWidth, target_step);
    constexpr int64_t kSide = 16 / kWidth;
    const int64_t whole = rows - rows % kSide;
    for (; c + kSide <= columns; c += kSide) {
      const std::byte* s = source + c * source_step;
      std::byte* t = target + c * kWidth;
      for (int64_t r = 0; r < whole; r += kSide)
        transpose_square(T{}, s + r * kWidth, source_step, t + r * target_step, target_step);
      transpose_block<T>(s + whole * kWidth, source_step, t + whole * target_step, target_step, rows - whole,
                         kSide);
    }
  }
  for (; c < columns; c += kBlock)
    transpose_block<T>(source + c * source_step, source_step, target + c * kWidth, target_step, rows,
                       std::min(kBlock, columns - c));
}

}  // namespace

StridedCopy::StridedCopy(size_t width, const Shape& dims, const View& source, const View& target)
    : width_(static_cast<int64_t>(width)) {
  const size_t rank = dims.size();
  require(source.strides.size() == rank && target.strides.size() == rank, ErrorCode::kRuntimeException,
          "a strided copy of rank ", rank, " was given ", source.strides.size(), " and ",
          counted(target.strides.size(), "stride"));
  if (element_count(dims) == 0) return;
  source_offset_ = source.offset * width_;
  target_offset_ = target.offset * width_;
  for (size_t i = 0; i < rank; ++i)
    if (dims[i] != 1) loops_.push_back({dims[i], source.strides[i] * width_, target.strides[i] * width_});
  if (width_ == 16) {  // complex128 is copied as two halves
    width_ = 8;
    loops_.push_back({2, 8, 8});
  }
  merge();
  plan();
  require(loops_.size() <= kMaxLoops, ErrorCode::kNotImplemented, "a copy over ",
          counted(loops_.size(), "dimension"), " is not supported");
  for (const Loop& loop : loops_) units_ *= loop.dim;
}

void StridedCopy::merge() {
  std::vector<Loop> merged;
  for (const Loop& loop : loops_) {
    if (!merged.empty() && merged.back().source == loop.source * loop.dim &&
        merged.back().target == loop.target * loop.dim)
      merged.back() = {merged.back().dim * loop.dim, loop.source, loop.target};
    else
      merged.push_back(loop);
  }
  loops_ = std::move(merged);
}

// Adds a loop over pieces of `piece` items of inner_, so that long inner loops can be shared between threads.
void StridedCopy::cut(int64_t piece, size_t position) {
  piece_ = std::clamp<int64_t>(piece, 1, inner_.dim);
  cut_loop_ = position;
  loops_.insert(loops_.begin() + static_cast<int64_t>(position),
                {(inner_.dim + piece_ - 1) / piece_, inner_.source * piece_, inner_.target * piece_});
}

void StridedCopy::plan() {
  if (!loops_.empty() && loops_.back().source == width_ && loops_.back().target == width_) {
    width_ *= loops_.back().dim;  // contiguous on both sides: one run
    loops_.pop_back();
  }
  if (loops_.empty()) {
    way_ = Way::kOneRun;
    return;
  }
  const bool is_element = width_ == 1 || width_ == 2 || width_ == 4 || width_ == 8;
  if (is_element && loops_.back().target == width_ && loops_.back().source != 0) {
    const auto along =
        std::find_if(loops_.begin(), loops_.end(), [&](const Loop& l) { return l.source == width_; });
    if (along != loops_.end()) {
      way_ = Way::kTiles;
      across_ = loops_.back();
      inner_ = *along;
      const size_t position = static_cast<size_t>(along - loops_.begin());
      loops_.pop_back();
      loops_.erase(along);
      cut(kLine / width_, position);
      return;
    }
  }
  way_ = is_element ? Way::kElements : Way::kRuns;
  inner_ = loops_.back();
  loops_.pop_back();
  cut(tuning::kCopyPieceBytes / width_, loops_.size());
}

void StridedCopy::operator()(const std::byte* source, std::byte* target) const {
  if (way_ == Way::kNothing) return;
  source += source_offset_;
  target += target_offset_;
  if (way_ == Way::kOneRun) return copy_bytes(target, source, static_cast<size_t>(width_));

  // Calls work(source, target, items) for each unit of [begin, end).
  const auto walk = [&](int64_t begin, int64_t end, auto&& work) {
    std::array<int64_t, kMaxLoops> at;
    const size_t last = loops_.size() - 1;
    const std::byte* s = source;
    std::byte* t = target;
    int64_t rest = begin;
    for (size_t d = loops_.size(); d-- > 0;) {
      at[d] = rest % loops_[d].dim;
      rest /= loops_[d].dim;
      s += at[d] * loops_[d].source;
      t += at[d] * loops_[d].target;
    }
    for (int64_t unit = begin;;) {
      work(s, t, std::min(piece_, inner_.dim - at[cut_loop_] * piece_));
      if (++unit == end) return;
      for (size_t d = last;; --d) {
        s += loops_[d].source;
        t += loops_[d].target;
        if (++at[d] < loops_[d].dim) break;
        s -= loops_[d].source * loops_[d].dim;
        t -= loops_[d].target * loops_[d].dim;
        at[d] = 0;
      }
    }
  };

  if (way_ == Way::kRuns) {
    parallel_for(units_, piece_ * width_ / tuning::kCopyBytesPerItem, [&](int64_t begin, int64_t end) {
      walk(begin, end, [&](const std::byte* s, std::byte* t, int64_t items) {
        copy_runs(s, inner_.source, t, inner_.target, width_, items);
      });
    });
    return;
  }
  visit_width(static_cast<size_t>(width_), [&](auto zero) {
    using T = decltype(zero);
    if (way_ == Way::kTiles)
      parallel_for(units_, piece_ * across_.dim, [&](int64_t begin, int64_t end) {
        walk(begin, end, [&](const std::byte* s, std::byte* t, int64_t items) {
          transpose_strip<T>(s, across_.source, t, inner_.target, items, across_.dim);
        });
      });
    else
      parallel_for(units_, piece_, [&](int64_t begin, int64_t end) {
        walk(begin, end, [&](const std::byte* s, std::byte* t, int64_t items) {
          copy_elements<T>(s, inner_.source, t, inner_.target, items);
        });
      });
  });
}

void copy_bytes(std::byte* target, const std::byte* source, size_t bytes) {
  const int64_t lines = (static_cast<int64_t>(bytes) + kLine - 1) / kLine;
  parallel_for(lines, kLine / tuning::kCopyBytesPerItem, [&](int64_t begin, int64_t end) {
    const size_t from = static_cast<size_t>(begin * kLine),
                 to = std::min(static_cast<size_t>(end * kLine), bytes);
    std::memcpy(target + from, source + from, to - from);
  });
}

void zero_bytes(std::byte* target, size_t bytes) {
  const int64_t lines = (static_cast<int64_t>(bytes) + kLine - 1) / kLine;
  parallel_for(lines, kLine / tuning::kCopyBytesPerItem, [&](int64_t begin, int64_t end) {
    const size_t from = static_cast<size_t>(begin * kLine),
                 to = std::min(static_cast<size_t>(end * kLine), bytes);
    std::memset(target + from, 0, to - from);
  });
}

}  // namespace ortrain
