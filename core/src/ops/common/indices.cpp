#include "ops/common/indices.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace ortrain {

namespace {

// Calls f(indices) with their type.
template <typename F>
void visit_indices(DType type, const void* indices, F&& f) {
  visit_types<int32_t, int64_t>(type, [&](auto zero) { f(static_cast<const decltype(zero)*>(indices)); });
}

}  // namespace

DType index_type(const NodeContext& c, size_t i) {
  const DType type = c.dtype(i);
  c.expect(type == DType::kInt32 || type == DType::kInt64, "the indices (input ", i, " '", c.node().inputs[i],
           "') must be int64 or int32, found ", to_string(type));
  return type;
}

void reject_index(const std::string& label, int64_t value, int64_t position, int64_t dim,
                  const IndexNames* names) {
  if (dim > 0 && names != nullptr)
    fail(ErrorCode::kInvalidArgument, label, ": index ", value, " at position ", position,
         " of the indices '", names->indices, "' is outside [", -dim, ", ", dim - 1, "]: '", names->data,
         "' has ", counted(dim, "row"));
  fail(ErrorCode::kInvalidArgument, label, ": index ", value, " at position ", position,
       dim > 0 ? concat(" of the indices is outside [", -dim, ", ", dim - 1, "]")
               : " of the indices refers to an axis without elements");
}

void resolve_indices(const std::string& label, DType type, const void* indices, int64_t n, int64_t dim,
                     int64_t* positions, const IndexNames* names) {
  visit_indices(type, indices, [&](const auto* given) {
    check_indices(label, given, n, dim, names);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) positions[i] = from_front(given[i], dim);
    });
  });
}

void gather_rows(const IndexedRows& r, size_t row_bytes, const std::byte* source, const int64_t* rows,
                 std::byte* target) {
  const auto copy = [&](auto size) {  // `size()` is a constant for the usual single elements
    const int64_t bytes = static_cast<int64_t>(size());
    parallel_for(r.outer * r.n, bytes / 4 + 1, [&](int64_t begin, int64_t end) {
      int64_t o = begin / r.n, i = begin % r.n;
      for (int64_t k = begin; k < end; ++k) {
        std::memcpy(target + k * bytes, source + (o * r.limit + rows[i]) * bytes, size());
        if (++i == r.n) i = 0, ++o;
      }
    });
  };
  if (r.elements() == 0) return;
  switch (row_bytes) {
    case 1:
      return copy(std::integral_constant<size_t, 1>{});
    case 4:
      return copy(std::integral_constant<size_t, 4>{});
    case 8:
      return copy(std::integral_constant<size_t, 8>{});
    default:
      return copy([row_bytes] { return row_bytes; });
  }
}

void scatter_rows(const IndexedRows& r, size_t width, BinaryFunction combine, const std::byte* source,
                  const int64_t* rows, std::byte* target) {
  const auto w = static_cast<int64_t>(width);
  const auto part = [&](int64_t o, int64_t i, int64_t from, int64_t to) {
    std::byte* t = target + ((o * r.limit + rows[i]) * r.row + from) * w;
    const std::byte* s = source + ((o * r.n + i) * r.row + from) * w;
    if (combine)
      combine(t, 1, s, 1, t, to - from);
    else
      std::memcpy(t, s, static_cast<size_t>((to - from) * w));
  };
  // The rows of slab o from `begin` to `end`. Selected rows that follow one another are one part: the
  // gradient of a border that mirrors its input has rows of one element.
  const auto rows_within = [&](int64_t o, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < r.n;) {
      int64_t next = i + 1;
      while (next < r.n && rows[next] == rows[next - 1] + 1) ++next;
      const int64_t first = std::max(rows[i], begin), last = std::min(rows[i] + next - i, end);
      if (first < last) part(o, i + first - rows[i], 0, (last - first) * r.row);
      i = next;
    }
  };
  const int64_t columns = 64 / w;  // a cache line
  if (r.elements() == 0) return;
  if (r.elements() < kGrain || r.outer >= max_threads()) {
    parallel_for(r.outer, r.n * r.row, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) rows_within(o, 0, r.limit);
    });
  } else if (r.row >= columns * max_threads()) {
    const int64_t lines = (r.row + columns - 1) / columns;
    parallel_for(lines, r.outer * r.n * columns, [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < r.outer; ++o)
        for (int64_t i = 0; i < r.n; ++i) part(o, i, begin * columns, std::min(end * columns, r.row));
    });
  } else {
    parallel_for(r.limit, std::max<int64_t>(1, r.elements() / r.limit), [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < r.outer; ++o) rows_within(o, begin, end);
    });
  }
}

Tuples tuples_of(const NodeContext& c, const Shape& data, const Shape& indices, int64_t batch_dims) {
  c.expect(!indices.empty() && !data.empty(), "data and indices must have at least rank 1, found shapes ",
           to_string(data), " and ", to_string(indices));
  const int64_t data_rank = static_cast<int64_t>(data.size()),
                indices_rank = static_cast<int64_t>(indices.size());
  c.expect(batch_dims >= 0 && batch_dims < std::min(data_rank, indices_rank), "batch_dims ", batch_dims,
           " must be smaller than the ranks of data ", to_string(data), " and indices ", to_string(indices));
  const size_t b = static_cast<size_t>(batch_dims);
  c.expect(std::equal(data.begin(), data.begin() + batch_dims, indices.begin()), "data ", to_string(data),
           " and indices ", to_string(indices), " differ in the first ", counted(batch_dims, "dimension"));
  const int64_t length = indices.back();
  c.expect(length >= 0 && length <= data_rank - batch_dims, "index tuples of length ", length,
           " are longer than data of shape ", to_string(data), " allows");
  const size_t end = b + static_cast<size_t>(length);
  Tuples t;
  t.dims.assign(data.begin() + batch_dims, data.begin() + static_cast<int64_t>(end));
  t.strides = strides_of(t.dims);
  t.batches = element_count(indices, 0, b);
  t.per_batch = element_count(indices, b, indices.size() - 1);
  t.slices = element_count(t.dims);
  t.rows = {.outer = 1,
            .limit = t.batches * t.slices,
            .n = t.batches * t.per_batch,
            .row = element_count(data, end, data.size())};
  return t;
}

Shape slices_shape(const Shape& data, const Shape& indices, int64_t batch_dims) {
  Shape out(indices.begin(), indices.end() - 1);
  out.insert(out.end(), data.begin() + batch_dims + indices.back(), data.end());
  return out;
}

void resolve_tuples(const std::string& label, DType type, const Tuples& t, const void* indices,
                    int64_t* rows) {
  const int64_t length = static_cast<int64_t>(t.dims.size());
  visit_indices(type, indices, [&](const auto* given) {
    for (int64_t i = 0; i < t.rows.n; ++i) {
      int64_t row = i / t.per_batch * t.slices;
      for (int64_t k = 0; k < length; ++k) {
        const size_t axis = static_cast<size_t>(k);
        const int64_t index = given[i * length + k];
        if (index < -t.dims[axis] || index >= t.dims[axis])
          reject_index(label, index, i * length + k, t.dims[axis]);
        row += from_front(index, t.dims[axis]) * t.strides[axis];
      }
      rows[i] = row;
    }
  });
}

Sheets sheets_of(const NodeContext& c, const Shape& data, const Shape& indices) {
  c.expect(data.size() == indices.size() && !data.empty(),
           "data and indices must have the same rank of at least 1, found ", to_string(data), " and ",
           to_string(indices));
  const size_t rank = data.size(), axis = axis_of(c, 0, static_cast<int64_t>(rank));
  const std::vector<int64_t> data_steps = strides_of(data), index_steps = strides_of(indices);
  Sheets s;
  s.limit = data[axis];
  s.along = indices[axis];
  s.data_along = data_steps[axis];
  s.index_along = index_steps[axis];
  s.size = element_count(indices);
  for (size_t d = 0; d < rank; ++d) {
    if (d == axis) continue;
    c.expect(indices[d] <= data[d], "the indices of shape ", to_string(indices), " exceed data of shape ",
             to_string(data), " along axis ", d);
    if (d + 1 == rank) {
      s.across = indices[d];
    } else {
      s.dims.push_back(indices[d]);
      s.data_steps.push_back(data_steps[d]);
      s.index_steps.push_back(index_steps[d]);
      s.units *= indices[d];
    }
  }
  return s;
}

void add_at_indices(const Sheets& s, DType dtype, const int64_t* positions, const void* source,
                    void* target) {
  visit_floating(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(source);
    T* to = static_cast<T*>(target);
    for_each_index(s, positions, [=](int64_t d, int64_t k) { to[d] += from[k]; });
  });
}

}  // namespace ortrain
