// AccumulateRows, which passes/accumulate_rows.cpp creates: adds the gradients of gathered rows to an
// accumulation buffer, and reads and writes only these rows of the buffer. Input `rows` is the set of the
// rows of the buffer that may not be zero (runtime/row_set.h). To overwrite the buffer, the kernel clears the
// rows of the set.
//
// The result equals that of InPlaceAccumulatorV2(buffer, Sum(GatherGrad, ...)) to the last bit: for each pair
// of indices and dY, the kernel adds up the slices of a row in their order; then it adds up the sums of the
// pairs, and adds them to the buffer.
#include <cstring>

#include "backend/cpu/strided_copy.h"
#include "op/operator.h"
#include "op/session_domain.h"
#include "ops/common/indices.h"
#include "runtime/row_set.h"

namespace ortrain {
namespace {

constexpr size_t kBuffer = 0, kRows = 1, kOverwrite = 2, kFirstPair = 3;

void accumulate_rows_shape(ShapeContext& c) {
  const Shape& buffer = c.shape(kBuffer);
  c.expect(!buffer.empty(), "the buffer must have at least rank 1, found a scalar");
  c.expect(c.dtype(kRows) == DType::kInt64 && c.size(kRows) == RowSet::words_of(buffer[0]),
           "the set of rows must have ", counted(RowSet::words_of(buffer[0]), "word"), " of int64, found ",
           to_string(c.dtype(kRows)), to_string(c.shape(kRows)));
  for (size_t i = kFirstPair; i + 1 < c.input_count(); i += 2) {
    Shape expected = c.shape(i);
    expected.insert(expected.end(), buffer.begin() + 1, buffer.end());
    c.expect(c.dtype(i + 1) == c.dtype(kBuffer) && c.shape(i + 1) == expected, "dY (input ", i + 1,
             ") must be ", to_string(c.dtype(kBuffer)), to_string(expected), ", found ",
             to_string(c.dtype(i + 1)), to_string(c.shape(i + 1)));
  }
  c.output(0, DType::kBool, {1});
}

// The rows of a pair of indices and dY.
struct Pair {
  IndexedRows r;
  DType type;  // of the indices
  Slot indices, dy, rows;
};

// The different rows of all pairs, each of which has a slot in memory for sums.
class Slots {
 public:
  // `place` has an element for each row of the table: the index of the row in `rows`, if `rows` has the row.
  // `place` need not be initialized, because add() compares the row at that index.
  Slots(int32_t* place, int64_t* rows) : place_(place), rows_(rows) {}

  int64_t add(int64_t row) {
    const int32_t at = place_[row];
    if (at >= 0 && at < count_ && rows_[at] == row) return at;
    place_[row] = static_cast<int32_t>(count_);
    rows_[count_] = row;
    return count_++;
  }
  int64_t count() const { return count_; }
  const int64_t* rows() const { return rows_; }

 private:
  int32_t* place_;
  int64_t* rows_;
  int64_t count_ = 0;
};

// The memory in which the kernel adds up slices before it adds them to the buffer.
struct Sums {
  Slot place, rows, sums, part;
};

class Accumulation {
 public:
  Accumulation(KernelContext& c, bool always)
      : dtype_(c.dtype(kBuffer)), width_(static_cast<int64_t>(size_of(dtype_))), limit_(c.shape(kBuffer)[0]) {
    row_ = element_count(c.shape(kBuffer), 1, c.shape(kBuffer).size());
    buffer_ = c.state(kBuffer);
    set_ = c.state(kRows);
    add_ = binary_function("Add", dtype_);
    int64_t n = 0;
    for (size_t i = kFirstPair; i + 1 < c.input_count(); i += 2) {
      const IndexedRows r{.outer = 1, .limit = limit_, .n = c.size(i), .row = row_};
      pairs_.push_back({r, index_type(c, i), c.in(i), c.in(i + 1), positions_scratch(c, r.n)});
      n += r.n;
    }
    direct_ = always && pairs_.size() == 1;
    if (direct_) return;
    const auto bytes = static_cast<size_t>(n * row_ * width_);
    sums_ = {c.scratch(static_cast<size_t>(limit_) * sizeof(int32_t)), positions_scratch(c, n),
             c.scratch(bytes), pairs_.size() > 1 ? c.scratch(bytes) : Slot{}};
  }

  void run(const std::string& label, const Frame& f, bool overwrites) const {
    for (const Pair& p : pairs_)  // checks all indices before it changes anything
      resolve_indices(label, p.type, f.at<void>(p.indices), p.r.n, limit_, f.at<int64_t>(p.rows));
    RowSet set(f.at<int64_t>(set_), limit_);
    auto* buffer = f.at<std::byte>(buffer_);
    if (overwrites) clear(set, buffer);
    for (const Pair& p : pairs_)
      for (int64_t i = 0; i < p.r.n; ++i) {
        const int64_t row = f.at<int64_t>(p.rows)[i];
        set.add(row);
        fetch(buffer + row * row_bytes());
      }
    if (direct_) {
      const Pair& p = pairs_.front();
      scatter_rows(p.r, static_cast<size_t>(width_), add_, f.at<std::byte>(p.dy), f.at<int64_t>(p.rows),
                   buffer);
    } else {
      add_sums(f, buffer, overwrites);
    }
  }

 private:
  int64_t row_bytes() const { return row_ * width_; }

  // Rows are far apart in a large table. Prefetching them lets the processor load several rows at a time.
  void fetch(const std::byte* row) const {
    for (int64_t at = 0; at < std::min<int64_t>(row_bytes(), 512); at += 64) __builtin_prefetch(row + at, 1);
  }

  void clear(RowSet& set, std::byte* buffer) const {
    if (set.has_all()) {
      zero_bytes(buffer, static_cast<size_t>(limit_ * row_bytes()));
    } else {
      parallel_for(
          set.words(), set.count() * row_ / std::max<int64_t>(1, set.words()), [&](int64_t from, int64_t to) {
            set.each_run(from, to, [&](int64_t first, int64_t end) {
              std::memset(buffer + first * row_bytes(), 0, static_cast<size_t>((end - first) * row_bytes()));
            });
          });
    }
    set.clear();
  }

  void add_sums(const Frame& f, std::byte* buffer, bool overwrites) const {
    Slots slots(f.at<int32_t>(sums_.place), f.at<int64_t>(sums_.rows));
    for (const Pair& p : pairs_)
      for (int64_t i = 0; i < p.r.n; ++i) f.at<int64_t>(p.rows)[i] = slots.add(f.at<int64_t>(p.rows)[i]);
    const int64_t count = slots.count();
    auto* sums = f.at<std::byte>(sums_.sums);
    for (size_t k = 0; k < pairs_.size(); ++k) {
      const Pair& p = pairs_[k];
      std::byte* part = k == 0 ? sums : f.at<std::byte>(sums_.part);
      zero_bytes(part, static_cast<size_t>(count * row_bytes()));
      IndexedRows r = p.r;
      r.limit = count;
      scatter_rows(r, static_cast<size_t>(width_), add_, f.at<std::byte>(p.dy), f.at<int64_t>(p.rows), part);
      if (k > 0)
        parallel_for(count, row_, [&](int64_t from, int64_t to) {
          std::byte* sum = sums + from * row_bytes();
          add_(sum, 1, part + from * row_bytes(), 1, sum, (to - from) * row_);
        });
    }
    parallel_for(count, row_, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        std::byte *target = buffer + slots.rows()[i] * row_bytes(), *sum = sums + i * row_bytes();
        if (overwrites)
          std::memcpy(target, sum, static_cast<size_t>(row_bytes()));
        else
          add_(target, 1, sum, 1, target, row_);
      }
    });
  }

  DType dtype_;
  int64_t width_, limit_, row_ = 0;
  Slot buffer_, set_;
  BinaryFunction add_ = nullptr;
  std::vector<Pair> pairs_;
  bool direct_ = false;
  Sums sums_;
};

Kernel accumulate_rows_kernel(KernelContext& c) {
  if (c.dtype(kBuffer) != DType::kFloat && c.dtype(kBuffer) != DType::kDouble) c.reject_dtype(kBuffer);
  const Tensor* known = c.has_input(kOverwrite) ? c.constant(kOverwrite) : nullptr;
  const bool always = known && *known->data<bool>();
  const Slot flag = c.has_input(kOverwrite) && !known ? c.in(kOverwrite) : Slot{};
  const Slot updated = c.out(0);
  return [=, label = c.node().label(), accumulation = Accumulation(c, always)](const Frame& f) {
    accumulation.run(label, f, always || (flag.defined() && *f.at<bool>(flag)));
    if (updated.defined()) *f.at<bool>(updated) = true;
  };
}

ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "AccumulateRows",
                  .signature = "buffer, rows, overwrite?, indices_and_dY... -> updated",
                  .rules = {.shape = accumulate_rows_shape, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true, .impure = true, .updates = 1u << kBuffer | 1u << kRows},
                  .kernels = {.cpu = accumulate_rows_kernel},
                  .made_from = {"GatherGrad"}});

}  // namespace
}  // namespace ortrain
