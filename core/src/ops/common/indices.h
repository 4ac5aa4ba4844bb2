// Reading, checking and applying index tensors, shared by Gather, GatherND, Scatter and their gradients.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>

#include "ops/common/elementwise.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {

// The type of the indices at input i; rejects the node unless it is int32 or int64.
DType index_type(const NodeContext& c, size_t i);

// The names of the indices of a node and of the data whose first axis they index, for messages.
struct IndexNames {
  std::string indices, data;
};

// Throws the error for an index out of range. `position` is the position of the index in the flattened index
// tensor.
[[noreturn]] void reject_index(const std::string& label, int64_t value, int64_t position, int64_t dim,
                               const IndexNames* names = nullptr);

// Throws at the first of the n indices outside [-size, size). Kernels check before they use an index: nothing
// may throw inside a parallel region.
template <typename I>
void check_indices(const std::string& label, const I* indices, int64_t n, int64_t dim,
                   const IndexNames* names = nullptr) {
  std::atomic<bool> good{true};
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    bool inside = true;
    for (int64_t i = begin; i < end; ++i) inside &= indices[i] >= -dim && indices[i] < dim;
    if (!inside) good.store(false, std::memory_order_relaxed);
  });
  if (good.load(std::memory_order_relaxed)) [[likely]]
    return;
  for (int64_t i = 0; i < n; ++i)
    if (indices[i] < -dim || indices[i] >= dim) reject_index(label, indices[i], i, dim, names);
}

// An index counted from the front.
template <typename I>
int64_t from_front(I index, int64_t dim) {
  return index < 0 ? static_cast<int64_t>(index) + dim : static_cast<int64_t>(index);
}

// Checks n indices of type int32 or int64, as check_indices() does, and converts them to counts from the
// front.
void resolve_indices(const std::string& label, DType type, const void* indices, int64_t n, int64_t dim,
                     int64_t* positions, const IndexNames* names = nullptr);

// Memory for n resolved indices.
inline Slot positions_scratch(KernelContext& c, int64_t n) {
  return c.scratch(static_cast<size_t>(n) * sizeof(int64_t));
}

// The rows of a tensor that n indices select, in each of `outer` slabs.
struct IndexedRows {
  int64_t outer = 1;  // slabs; each has `limit` rows and corresponds to n rows of the other tensor
  int64_t limit = 1;
  int64_t n = 1;
  int64_t row = 1;  // elements

  int64_t elements() const { return outer * n * row; }
};

// target[o][i] = source[o][rows[i]]. `row_bytes` is the size of a row.
void gather_rows(const IndexedRows& r, size_t row_bytes, const std::byte* source, const int64_t* rows,
                 std::byte* target);

// target[o][rows[i]] = combine(target[o][rows[i]], source[o][i]) element by element, in the order of i if two
// indices are equal, whatever the number of threads. Elements have `width` bytes. Without a function, the
// source replaces the target.
void scatter_rows(const IndexedRows& r, size_t width, BinaryFunction combine, const std::byte* source,
                  const int64_t* rows, std::byte* target);

// How the tuples of an index tensor map to slices of a data tensor.
struct Tuples {
  std::vector<int64_t> dims;     // of the axes that a tuple indexes
  std::vector<int64_t> strides;  // of these axes, in slices
  int64_t batches = 1;           // leading axes that data and indices share
  int64_t per_batch = 1;         // tuples of one batch
  int64_t slices = 1;            // slices of one batch of the data
  IndexedRows rows;              // all tuples in one slab, a row is a slice
};

Tuples tuples_of(const NodeContext& c, const Shape& data, const Shape& indices, int64_t batch_dims);

// Shape of the slices that the tuples select.
Shape slices_shape(const Shape& data, const Shape& indices, int64_t batch_dims);

// Checks the tuples, of type int32 or int64, and converts each to the index of its slice.
void resolve_tuples(const std::string& label, DType type, const Tuples& t, const void* indices,
                    int64_t* rows);

// How an index tensor maps to a data tensor: as `units` sheets of `along` × `across` indices, along the axis
// and along the last dimension (if those are the same, `across` is 1 and a sheet is a line). Two indices of
// different sheets or columns never refer to the same element, so sheets and columns can be divided among
// threads, and results are repeatable.
struct Sheets {
  int64_t limit = 1;                        // size of the axis in the data
  int64_t along = 1, across = 1;            // dimensions of a sheet
  int64_t data_along = 1, index_along = 1;  // steps along the axis
  std::vector<int64_t> dims;                // of the other dimensions, outermost first
  std::vector<int64_t> data_steps, index_steps;
  int64_t units = 1;
  int64_t size = 0;  // total number of indices
};

Sheets sheets_of(const NodeContext& c, const Shape& data, const Shape& indices);

// Calls f(data position, index position) for every resolved index. One thread visits all indices that may
// refer to the same element, in order.
template <typename F>
void for_each_index(const Sheets& s, const int64_t* positions, F&& f) {
  if (s.size == 0) return;
  const auto sheet = [&](int64_t unit, int64_t from, int64_t to) {
    int64_t data = 0, index = 0;
    for (size_t d = s.dims.size(); d-- > 0;) {
      const int64_t at = unit % s.dims[d];
      unit /= s.dims[d];
      data += at * s.data_steps[d];
      index += at * s.index_steps[d];
    }
    for (int64_t a = 0; a < s.along; ++a)
      for (int64_t j = from; j < to; ++j) {
        const int64_t k = index + a * s.index_along + j;
        f(data + positions[k] * s.data_along + j, k);
      }
  };
  const bool by_unit = s.units >= s.across;
  const int64_t parts = by_unit ? s.units : s.across;
  parallel_for(parts, s.along * (by_unit ? s.across : s.units) * 2, [&](int64_t begin, int64_t end) {
    const int64_t first = by_unit ? begin : 0, last = by_unit ? end : s.units;
    for (int64_t unit = first; unit < last; ++unit)
      sheet(unit, by_unit ? 0 : begin, by_unit ? s.across : end);
  });
}

// target[position of the index] += source[index], on float or double.
void add_at_indices(const Sheets& s, DType dtype, const int64_t* positions, const void* source, void* target);

}  // namespace ortrain
