#include "ops/indices.h"

namespace ortrain {

void reject_index(const std::string& label, int64_t value, int64_t position, int64_t extent) {
  fail(ErrorCode::kInvalidArgument, label, ": index ", value, " at position ", position,
       extent > 0 ? concat(" of the indices is outside [", -extent, ", ", extent - 1, "]")
                  : " of the indices points into an axis without elements");
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

Tuples tuples_of(const NodeContext& c, const Shape& data, const Shape& indices, int64_t batch_dims) {
  c.expect(!indices.empty() && !data.empty(), "data and indices must have at least rank 1, found shapes ",
           to_string(data), " and ", to_string(indices));
  const int64_t data_rank = static_cast<int64_t>(data.size()),
                indices_rank = static_cast<int64_t>(indices.size());
  c.expect(batch_dims >= 0 && batch_dims < std::min(data_rank, indices_rank), "batch_dims ", batch_dims,
           " must be smaller than the ranks of data ", to_string(data), " and indices ", to_string(indices));
  const size_t b = static_cast<size_t>(batch_dims);
  c.expect(std::equal(data.begin(), data.begin() + batch_dims, indices.begin()), "data ", to_string(data),
           " and indices ", to_string(indices), " differ in the first ", batch_dims, " extents");
  const int64_t length = indices.back();
  c.expect(length >= 0 && length <= data_rank - batch_dims, "index tuples of length ", length,
           " are longer than data of shape ", to_string(data), " allows");
  const size_t end = b + static_cast<size_t>(length);
  Tuples t;
  t.extents.assign(data.begin() + batch_dims, data.begin() + static_cast<int64_t>(end));
  t.strides = strides_of(t.extents);
  t.batches = element_count(indices, 0, b);
  t.per_batch = element_count(indices, b, indices.size() - 1);
  t.slices = element_count(t.extents);
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

Sheets sheets_of(const NodeContext& c, const Shape& data, const Shape& indices) {
  c.expect(data.size() == indices.size() && !data.empty(),
           "data and indices must have one rank of at least 1, found ", to_string(data), " and ",
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
    c.expect(indices[d] <= data[d], "the indices of shape ", to_string(indices),
             " reach beyond data of shape ", to_string(data), " along axis ", d);
    if (d + 1 == rank) {
      s.across = indices[d];
    } else {
      s.extents.push_back(indices[d]);
      s.data_steps.push_back(data_steps[d]);
      s.index_steps.push_back(index_steps[d]);
      s.units *= indices[d];
    }
  }
  return s;
}

}  // namespace ortrain
