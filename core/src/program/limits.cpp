#include "program/limits.h"

#include <cstdint>
#include <string>

#include "op/operator.h"
#include "runtime/elements_to_visit.h"
#include "runtime/system.h"
#include "runtime/value.h"

namespace ortrain {

void check_given_value(const std::string& name, const Shape& shape, const ProgramLimits& limits) {
  if (element_count(shape) > 0) return;
  const auto product = static_cast<uint64_t>(elements_to_visit(shape));
  require(product <= limits.elements, ErrorCode::kInvalidArgument, "the value \"", name, "\" has shape ",
          to_string(shape), " and so ", counted(product, "element"),
          " (a dimension of 0 counts as 1), but session.max_elements allows at most ", limits.elements);
}

void check_value(const NodeContext& c, size_t o, DType dtype, const Shape& shape,
                 const ProgramLimits& limits) {
  c.expect(shape.size() <= kMaxRank, "output ", o, " has ", counted(shape.size(), "dimension"),
           ", but at most ", kMaxRank, " are supported");
  const int64_t count = element_count(shape);  // rejects negative dimensions and overflow
  const auto product = static_cast<uint64_t>(elements_to_visit(shape));
  c.expect(product <= limits.elements, "output ", o, " has shape ", to_string(shape), " and so ",
           counted(product, "element"), count == 0 ? " (a dimension of 0 counts as 1)" : "",
           ", but session.max_elements allows at most ", limits.elements);
  c.expect(bytes_of(dtype, count) <= limits.bytes, "output ", o, " of type ", to_string(dtype), " and shape ",
           to_string(shape), " takes ", counted(bytes_of(dtype, count), "byte"),
           ", but session.max_bytes allows at most ", limits.bytes);
}

void check_value(const NodeContext& c, size_t o, const Sequence& sequence, const ProgramLimits& limits) {
  c.expect(sequence.bytes() <= limits.bytes, "output ", o, ", a sequence of ",
           counted(sequence.size(), "tensor"), ", takes ", counted(sequence.bytes(), "byte"),
           ", but session.max_bytes allows at most ", limits.bytes);
}

size_t machine_memory() {
  static const size_t bytes = system::machine_memory();
  return bytes;
}

}  // namespace ortrain
