// Reading, checking and following index tensors: what Gather, GatherND, Scatter and their gradients share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "ops/movement.h"
#include "runtime/threads.h"

namespace ortrain {

// Calls f(I{}) with the type of the indices at input i: int32 or int64.
template <typename F>
void visit_index(const NodeContext& c, size_t i, F&& f) {
  switch (c.dtype(i)) {
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    default:
      c.reject("the indices (input ", i, " '", c.node().inputs[i], "') must be int64 or int32, found ",
               to_string(c.dtype(i)));
  }
}

// The error of an index outside its range. `position` counts in the flattened index tensor.
[[noreturn]] void reject_index(const std::string& label, int64_t value, int64_t position, int64_t extent);

// Throws at the first of the n indices outside [-extent, extent). Kernels check before they follow an index:
// nothing may throw inside a parallel region.
template <typename I>
void check_indices(const std::string& label, const I* indices, int64_t n, int64_t extent) {
  std::atomic<bool> good{true};
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    bool inside = true;
    for (int64_t i = begin; i < end; ++i) inside &= indices[i] >= -extent && indices[i] < extent;
    if (!inside) good.store(false, std::memory_order_relaxed);
  });
  if (good.load(std::memory_order_relaxed)) [[likely]]
    return;
  for (int64_t i = 0; i < n; ++i)
    if (indices[i] < -extent || indices[i] >= extent) reject_index(label, indices[i], i, extent);
}

// An index counted from the front.
template <typename I>
int64_t from_front(I index, int64_t extent) {
  return index < 0 ? static_cast<int64_t>(index) + extent : static_cast<int64_t>(index);
}

// The rows of a tensor that n indices name, in each of `outer` slabs.
struct IndexedRows {
  int64_t outer = 1;  // slabs; each has `limit` rows and meets n rows of the other side
  int64_t limit = 1;
  int64_t n = 1;
  int64_t row = 1;  // elements

  int64_t elements() const { return outer * n * row; }
};

// target[o][i] = source[o][rows[i]]. `row_bytes` is the size of a row.
void gather_rows(const IndexedRows& r, size_t row_bytes, const std::byte* source, const int64_t* rows,
                 std::byte* target);

// combine(target[o][rows[i]], source[o][i]) element by element, in the order of i wherever two rows meet,
// whatever the number of threads. The work is shared by slabs, else by columns, else by ranges of target
// rows.
template <typename T, typename Combine>
void scatter_rows(const IndexedRows& r, const T* source, const int64_t* rows, T* target, Combine combine) {
  const auto part = [&](int64_t o, int64_t i, int64_t from, int64_t to) {
    T* t = target + (o * r.limit + rows[i]) * r.row;
    const T* s = source + (o * r.n + i) * r.row;
#pragma omp simd
    for (int64_t k = from; k < to; ++k) t[k] = combine(t[k], s[k]);
  };
  constexpr int64_t kColumns = 64 / static_cast<int64_t>(sizeof(T));  // a cache line
  if (r.elements() == 0) return;
  if (r.elements() < kGrain || r.outer >= max_threads()) {
    parallel_for(r.outer, r.n * r.row, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o)
        for (int64_t i = 0; i < r.n; ++i) part(o, i, 0, r.row);
    });
  } else if (r.row >= kColumns * max_threads()) {
    const int64_t lines = (r.row + kColumns - 1) / kColumns;
    parallel_for(lines, r.outer * r.n * kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < r.outer; ++o)
        for (int64_t i = 0; i < r.n; ++i) part(o, i, begin * kColumns, std::min(end * kColumns, r.row));
    });
  } else {
    parallel_for(r.limit, std::max<int64_t>(1, r.elements() / r.limit), [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < r.outer; ++o)
        for (int64_t i = 0; i < r.n; ++i)
          if (rows[i] >= begin && rows[i] < end) part(o, i, 0, r.row);
    });
  }
}

// How the tuples of an index tensor walk a data tensor.
struct Tuples {
  std::vector<int64_t> extents;  // of the axes that a tuple names
  std::vector<int64_t> strides;  // of the same axes, in slices
  int64_t batches = 1;           // leading axes that data and indices share
  int64_t per_batch = 1;         // tuples of one batch
  int64_t slices = 1;            // slices of one batch of the data
  IndexedRows rows;              // all tuples in one slab, a row is a slice
};

Tuples tuples_of(const NodeContext& c, const Shape& data, const Shape& indices, int64_t batch_dims);

// Shape of the slices that the tuples name.
Shape slices_shape(const Shape& data, const Shape& indices, int64_t batch_dims);

// Checks the tuples and turns each into the number of its slice.
template <typename I>
void resolve_tuples(const std::string& label, const Tuples& t, const I* indices, int64_t* rows) {
  const int64_t length = static_cast<int64_t>(t.extents.size());
  for (int64_t i = 0; i < t.rows.n; ++i) {
    int64_t row = i / t.per_batch * t.slices;
    for (int64_t k = 0; k < length; ++k) {
      const size_t axis = static_cast<size_t>(k);
      const I index = indices[i * length + k];
      if (index < -t.extents[axis] || index >= t.extents[axis])
        reject_index(label, index, i * length + k, t.extents[axis]);
      row += from_front(index, t.extents[axis]) * t.strides[axis];
    }
    rows[i] = row;
  }
}

// Memory for the resolved rows.
inline Slot rows_scratch(KernelContext& c, const Tuples& t) {
  return c.scratch(static_cast<size_t>(t.rows.n) * sizeof(int64_t));
}

// How an index tensor walks a data tensor: as `units` sheets of `along` × `across` indices, along the axis
// and along the last dimension (where those are the same, `across` is 1 and a sheet is a line). Two indices
// of different sheets or columns never meet in the data, so sheets and columns can be shared between threads,
// and results are repeatable.
struct Sheets {
  int64_t limit = 1;                        // extent of the axis in the data
  int64_t along = 1, across = 1;            // extents of a sheet
  int64_t data_along = 1, index_along = 1;  // steps along the axis
  std::vector<int64_t> extents;             // of the other dimensions, outermost first
  std::vector<int64_t> data_steps, index_steps;
  int64_t units = 1;
  int64_t size = 0;  // indices in all
};

Sheets sheets_of(const NodeContext& c, const Shape& data, const Shape& indices);

// Calls f(data position, index position) for every index; those that may meet in one place of the data are
// visited by one thread in their order.
template <typename I, typename F>
void for_each_index(const Sheets& s, const I* indices, F&& f) {
  if (s.size == 0) return;
  const auto sheet = [&](int64_t unit, int64_t from, int64_t to) {
    int64_t data = 0, index = 0;
    for (size_t d = s.extents.size(); d-- > 0;) {
      const int64_t at = unit % s.extents[d];
      unit /= s.extents[d];
      data += at * s.data_steps[d];
      index += at * s.index_steps[d];
    }
    for (int64_t a = 0; a < s.along; ++a)
      for (int64_t j = from; j < to; ++j) {
        const int64_t k = index + a * s.index_along + j;
        f(data + from_front(indices[k], s.limit) * s.data_along + j, k);
      }
  };
  if (s.units >= s.across)
    parallel_for(s.units, s.along * s.across * 2, [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) sheet(unit, 0, s.across);
    });
  else
    parallel_for(s.across, s.along * s.units * 2, [&](int64_t begin, int64_t end) {
      for (int64_t unit = 0; unit < s.units; ++unit) sheet(unit, begin, end);
    });
}

}  // namespace ortrain
