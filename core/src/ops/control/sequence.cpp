// Sequences of tensors: creating them, inserting and reading elements. An inserted element is copied, so that
// later changes of the tensor do not affect the sequence.
#include "ops/control/sequence.h"

#include <algorithm>

#include "op/subgraph_context.h"
#include "ops/common/shape_helpers.h"
#include "ops/control/control_flow.h"

namespace ortrain {

bool expect_sequence(TypeContext& c, size_t i) {
  const ValueInfo& info = c.input(i);
  const bool fits = info.is_sequence || (info.dtype == DType::kUndefined && !info.dims);
  if (!fits) c.reject(concat("input ", i, " ('", c.node().inputs[i], "') is a tensor, expected a sequence"));
  return fits;
}

bool expect_tensor(TypeContext& c, size_t i) {
  const ValueInfo& info = c.input(i);
  if (!info.is_tensor())
    c.reject(concat("input ", i, " ('", c.node().inputs[i], "') is ",
                    info.is_sequence ? "a sequence" : "an optional value", ", expected a tensor"));
  return info.is_tensor();
}

ValueInfo sequence_of(const ValueInfo& element) {
  ValueInfo info = element;
  info.is_sequence = true;
  if (info.dims)
    for (Dim& dim : *info.dims) dim.symbol.clear();
  return info;
}

ValueInfo element_of(const ValueInfo& sequence) {
  ValueInfo info = sequence;
  info.is_sequence = info.is_optional = false;
  return info;
}

size_t position_in(const DynamicContext& c, size_t i, size_t size, size_t last, size_t otherwise) {
  if (!c.has_input(i)) return otherwise;
  const Tensor& value = c.in(i);
  c.expect(value.size() == 1 && (value.dtype() == DType::kInt64 || value.dtype() == DType::kInt32), "input ",
           i, " must be a single value of type int64 or int32, found ", describe(value));
  const int64_t given = value.to_int64()[0], count = static_cast<int64_t>(size);
  const int64_t at = given < 0 ? given + count : given;
  c.expect(at >= 0 && at <= static_cast<int64_t>(last) && last < SIZE_MAX, "position ", given,
           " is outside a sequence of ", counted(size, "element"));
  return static_cast<size_t>(at);
}

namespace {

// Checks the types of a sequence and of a tensor that becomes an element of the sequence.
void expect_same_type(TypeContext& c, size_t sequence, size_t element) {
  const DType a = c.input(sequence).dtype, b = c.input(element).dtype;
  if (a != DType::kUndefined && b != DType::kUndefined && a != b)
    c.reject(concat("input ", element, " ('", c.node().inputs[element], "') has type ", to_string(b),
                    ", expected ", to_string(a), ", the type of the sequence"));
}

size_t last_of(const DynamicContext& c, const Sequence& sequence) {
  c.expect(sequence.size() > 0, "the sequence is empty, expected at least one element");
  return sequence.size() - 1;
}

Name number(GradientContext& g, int64_t value) { return g.constant(Tensor::scalar(value)); }

// ---------------------------------------------------------------------------------------------------------------------
// SequenceEmpty: no elements, of type `dtype`.

void empty_types(TypeContext& c) {
  const auto dtype = static_cast<DType>(c.node().int_or("dtype", static_cast<int64_t>(DType::kFloat)));
  if (bits_of(dtype) == 0)
    c.reject(concat("sequences of type ", to_string(dtype), " are not supported"));
  else
    c.output(0, sequence_of({"", dtype, std::nullopt}));
}

void empty_run(DynamicContext& c) {
  c.set(0, Sequence(static_cast<DType>(c.node().int_or("dtype", static_cast<int64_t>(DType::kFloat)))));
}

ORTRAIN_OPERATOR({.type = "SequenceEmpty",
                  .rules = {.types = empty_types},
                  .traits = {.stops_gradient = true, .takes_sequences = true},
                  .kernels = {.run = empty_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SequenceConstruct: the inputs are the elements. dx_k = dS[k]

void construct_types(TypeContext& c) {
  ValueInfo element = c.input(0);
  for (size_t i = 0; i < c.node().inputs.size(); ++i) {
    if (!expect_tensor(c, i)) return;
    const ValueInfo& other = c.input(i);
    if (other.dtype != DType::kUndefined && element.dtype != DType::kUndefined &&
        other.dtype != element.dtype)
      return c.reject(concat("its inputs must have the same type, found ", to_string(element.dtype), " and ",
                             to_string(other.dtype), " (input ", i, ")"));
    element = either(element, other);
  }
  c.output(0, sequence_of(element));
}

void construct_run(DynamicContext& c) {
  c.expect(c.input_count() > 0, "it has no inputs, expected at least one");
  std::vector<Tensor> elements;
  for (size_t i = 0; i < c.input_count(); ++i) elements.push_back(c.in(i).clone());
  c.set(0, Sequence(c.dtype(0), elements));
}

void construct_gradient(GradientContext& g) {
  for (size_t i = 0; i < g.node().inputs.size(); ++i)
    if (g.needs(i)) g.set(i, g("SequenceAt", {g.dy(0), number(g, static_cast<int64_t>(i))}));
}

ORTRAIN_OPERATOR({.type = "SequenceConstruct",
                  .rules = {.gradient = construct_gradient, .types = construct_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = construct_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SequenceInsert: S' = S with x at a position, by default the end.
//
//     dx = dS'[position],   dS = dS' without that element

void insert_types(TypeContext& c) {
  if (!expect_sequence(c, 0) || !expect_tensor(c, 1)) return;
  expect_same_type(c, 0, 1);
  c.output(0, sequence_of(either(element_of(c.input(0)), c.input(1))));
}

void insert_run(DynamicContext& c) {
  const Sequence& sequence = c.sequence(0);
  const size_t at = position_in(c, 2, sequence.size(), sequence.size(), sequence.size());
  c.expect(c.dtype(1) == sequence.dtype(), "input 1 has type ", to_string(c.dtype(1)), ", expected ",
           to_string(sequence.dtype()), ", the type of the sequence");
  c.set(0, sequence.inserted(at, c.in(1).clone()));
}

// A position counted from the end refers to different elements in S' and in S.
void insert_gradient(GradientContext& g) {
  std::string at = number(g, -1);
  if (g.has_x(2)) {
    at = g.x(2);
    const std::string zero = g.scalar_like(at, 0), one = g.scalar_like(at, 1);
    const std::string shifted = g("Sub", {at, one});
    at = g("Where", {g("Less", {at, zero}), shifted, at});
  }
  if (g.needs(1)) g.set(1, g("SequenceAt", {g.dy(0), at}));
  if (g.needs(0)) g.set(0, g("SequenceErase", {g.dy(0), at}));
}

ORTRAIN_OPERATOR({.type = "SequenceInsert",
                  .rules = {.gradient = insert_gradient, .types = insert_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = insert_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SequenceErase: S' = S without the element at a position, by default the last.
//
//     dS = dS' with zeros at that position

void erase_types(TypeContext& c) {
  if (expect_sequence(c, 0)) c.output(0, sequence_of(element_of(c.input(0))));
}

void erase_run(DynamicContext& c) {
  const Sequence& sequence = c.sequence(0);
  const size_t last = last_of(c, sequence);
  c.set(0, sequence.erased(position_in(c, 1, sequence.size(), last, last)));
}

// A position counted from the end refers to different elements in S and in S'.
void erase_gradient(GradientContext& g) {
  Name at;
  if (g.has_x(1)) {
    const Name given = g.x(1);
    const Name length =
        g("Cast", {g("SequenceLength", {g.x(0)})}, {{"to", static_cast<int64_t>(g.dtype(given))}});
    at = g("Where", {g("Less", {given, g.scalar_like(given, 0)}), g("Add", {given, length}), given});
  }
  const Name element = g("SequenceAt", {g.x(0), at.empty() ? number(g, -1) : at});
  Names inputs = {g.dy(0), zeros_like_value(g, element)};
  if (!at.empty()) inputs.push_back(at);
  g.set(0, g("SequenceInsert", inputs));
}

ORTRAIN_OPERATOR({.type = "SequenceErase",
                  .rules = {.gradient = erase_gradient, .types = erase_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = erase_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SequenceAt: y = S[position]. dS is zero except for dy at that position.

void at_types(TypeContext& c) {
  if (expect_sequence(c, 0)) c.output(0, element_of(c.input(0)));
}

void at_run(DynamicContext& c) {
  const Sequence& sequence = c.sequence(0);
  c.expect(c.has_input(1), "input 1 is required but missing");
  c.set(0, sequence.at(position_in(c, 1, sequence.size(), last_of(c, sequence), 0)));
}

void at_gradient(GradientContext& g) {
  const std::string zeros = zeros_like_sequence(writer_of(g), g.x(0), g.dtype(g.x(0)));
  const std::string longer = g("SequenceInsert", {zeros, g.dy(0), g.x(1)});
  // Inserting dY moves the old element at that position one place back. Its position counted from the end
  // does not change.
  const std::string at = g.x(1), zero = g.scalar_like(at, 0);
  const std::string behind = g("Where", {g("Less", {at, zero}), at, g("Add", {at, g.scalar_like(at, 1)})});
  g.set(0, g("SequenceErase", {longer, behind}));
}

ORTRAIN_OPERATOR({.type = "SequenceAt",
                  .rules = {.gradient = at_gradient, .types = at_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = at_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SequenceLength.

void length_types(TypeContext& c) {
  if (expect_sequence(c, 0)) c.output(0, DType::kInt64, std::vector<Dim>{});
}

void length_run(DynamicContext& c) {
  *c.out(0, DType::kInt64, {}).data<int64_t>() = static_cast<int64_t>(c.sequence(0).size());
}

ORTRAIN_OPERATOR({.type = "SequenceLength",
                  .rules = {.types = length_types},
                  .traits = {.stops_gradient = true, .takes_sequences = true},
                  .kernels = {.run = length_run}});

// ---------------------------------------------------------------------------------------------------------------------
// ConcatFromSequence: the elements concatenated along an axis or, with new_axis, stacked along a new axis. dS
// is dY split into these pieces again.

// The axis, counted from the front of the result.
size_t concat_axis(const DynamicContext& c, const Sequence& sequence, bool stacks) {
  c.expect(c.node().has("axis"), "attribute 'axis' is missing");
  const auto rank = static_cast<int64_t>(sequence.at(0).shape().size()) + (stacks ? 1 : 0);
  return static_cast<size_t>(normalize_axis(c.node().int_or("axis", 0), rank, c.node().label()));
}

void concat_types(TypeContext& c) {
  if (!expect_sequence(c, 0)) return;
  const bool stacks = c.node().int_or("new_axis", 0) != 0;
  ValueInfo result = element_of(c.input(0));
  if (result.dims) {
    const auto rank = static_cast<int64_t>(result.dims->size()) + (stacks ? 1 : 0);
    const auto axis = normalize_axis(c.node().int_or("axis", 0), rank, c.node().label());
    // All elements have the same dimensions except along the axis.
    if (stacks)
      result.dims->insert(result.dims->begin() + axis, c.unknown());
    else
      (*result.dims)[static_cast<size_t>(axis)] = c.unknown();
    for (Dim& dim : *result.dims)
      if (!dim.known() && dim.symbol.empty()) dim = c.unknown();
  }
  c.output(0, result);
}

void concat_run(DynamicContext& c) {
  const Sequence& sequence = c.sequence(0);
  last_of(c, sequence);
  const bool stacks = c.node().int_or("new_axis", 0) != 0;
  const size_t axis = concat_axis(c, sequence, stacks), width = size_of(sequence.dtype());
  c.expect(width > 0, "sequences of type ", to_string(sequence.dtype()), " cannot be concatenated");
  const Shape& first = sequence.at(0).shape();
  Shape out = first;
  if (stacks) out.insert(out.begin() + static_cast<std::ptrdiff_t>(axis), 0);
  out[axis] = 0;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Shape& shape = sequence.at(i).shape();
    bool fits = shape.size() == first.size();
    for (size_t d = 0; fits && d < shape.size(); ++d) fits = (!stacks && d == axis) || shape[d] == first[d];
    c.expect(fits, "element ", i, " of shape ", to_string(shape), " does not match element 0 of shape ",
             to_string(first), stacks ? "" : concat(" outside axis ", axis));
    out[axis] += stacks ? 1 : shape[axis];
  }
  const Tensor& result = c.out(0, sequence.dtype(), out);
  const int64_t outer = element_count(out, 0, axis), inner = element_count(out, axis + 1, out.size()),
                out_row = out[axis] * inner;
  int64_t offset = 0;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Tensor& element = sequence.at(i);
    const int64_t row = (stacks ? 1 : element.shape()[axis]) * inner;
    if (outer * row > 0)
      StridedCopy(width, {outer, row}, {0, {row, 1}}, {offset, {out_row, 1}})(element.raw(), result.raw());
    offset += row;
  }
}

void concat_gradient(GradientContext& g) {
  const Node& node = g.node();
  const int64_t axis = node.int_or("axis", 0);
  if (node.int_or("new_axis", 0) != 0)
    return g.set(0, g("SplitToSequence", {g.dy(0)}, {{"axis", axis}, {"keepdims", int64_t{0}}}));
  g.set(0, g("SplitToSequence", {g.dy(0), g.keep(dims_of_elements(writer_of(g), g.x(0), axis))},
             {{"axis", axis}}));
}

ORTRAIN_OPERATOR({.type = "ConcatFromSequence",
                  .rules = {.gradient = concat_gradient, .types = concat_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = concat_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SplitToSequence: pieces along an axis: of length `split`, of the lengths in `split`, or of length 1 each;
// then keepdims = 0 removes the axis. dX is the concatenation of the pieces of dS.

void split_types(TypeContext& c) {
  if (!expect_tensor(c, 0)) return;
  ValueInfo element = c.input(0);
  const bool ones = !c.node().has_input(1), keeps = c.node().int_or("keepdims", 1) != 0;
  if (element.dims && !element.dims->empty()) {
    const auto axis = normalize_axis(c.node().int_or("axis", 0), static_cast<int64_t>(element.dims->size()),
                                     c.node().label());
    if (ones && !keeps)
      element.dims->erase(element.dims->begin() + axis);
    else
      (*element.dims)[static_cast<size_t>(axis)] = ones ? Dim{1, ""} : Dim{};
  }
  c.output(0, sequence_of(element));
}

void split_run(DynamicContext& c) {
  const Tensor& x = c.in(0);
  c.expect(!x.shape().empty(), "its input must have at least one axis, found a scalar");
  const auto axis =
      static_cast<size_t>(normalize_axis(c.node().int_or("axis", 0), c.rank(0), c.node().label()));
  const int64_t length_of_axis = x.shape()[axis];
  const bool ones = !c.has_input(1), squeezes = ones && c.node().int_or("keepdims", 1) == 0;
  std::vector<int64_t> lengths;
  // Checked before the pieces are listed, because each piece takes memory even if it has few elements.
  const auto check_count = [&](int64_t pieces) {
    c.check_limits(0, DType::kUInt8, {pieces, static_cast<int64_t>(sizeof(Tensor))});
  };
  if (ones) {
    check_count(length_of_axis);
    lengths.assign(static_cast<size_t>(length_of_axis), 1);
  } else if (const Tensor& split = c.in(1); split.shape().empty()) {
    const int64_t length = split.to_int64()[0];
    c.expect(length > 0, "the length of a piece must be positive, found ", length);
    check_count(length_of_axis / length);
    for (int64_t at = 0; at < length_of_axis; at += length)
      lengths.push_back(std::min(length, length_of_axis - at));
  } else {
    lengths = split.to_int64();
    int64_t sum = 0;
    for (const int64_t length : lengths) {
      c.expect(length >= 0 && length <= length_of_axis - sum, "the pieces have the lengths ",
               to_string(lengths), ", expected lengths that add up to ", length_of_axis,
               ", the size of axis ", axis);
      sum += length;
    }
    c.expect(sum == length_of_axis, "the pieces have the lengths ", to_string(lengths),
             ", expected lengths that add up to ", length_of_axis, ", the size of axis ", axis);
  }
  const size_t width = width_of(c, 0);
  const int64_t outer = element_count(x.shape(), 0, axis),
                inner = element_count(x.shape(), axis + 1, x.shape().size()), in_row = length_of_axis * inner;
  std::vector<Tensor> pieces;
  int64_t offset = 0;
  for (const int64_t length : lengths) {
    Shape shape = x.shape();
    shape[axis] = length;
    if (squeezes) shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
    const Tensor& piece = pieces.emplace_back(x.dtype(), shape);
    const int64_t row = length * inner;
    if (outer * row > 0)
      StridedCopy(width, {outer, row}, {offset, {in_row, 1}}, {0, {row, 1}})(x.raw(), piece.raw());
    offset += row;
  }
  c.set(0, Sequence(x.dtype(), pieces));
}

void split_gradient(GradientContext& g) {
  const bool stacks = !g.has_x(1) && g.node().int_or("keepdims", 1) == 0;
  g.set(0, g("ConcatFromSequence", {g.dy(0)},
             {{"axis", g.node().int_or("axis", 0)}, {"new_axis", static_cast<int64_t>(stacks)}}));
}

ORTRAIN_OPERATOR({.type = "SplitToSequence",
                  .rules = {.gradient = split_gradient, .types = split_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = split_run}});

}  // namespace
}  // namespace ortrain
