// Scan: a subgraph that runs once for each slice of its inputs, carrying a state.
//
//     for t = 0 ... n-1:  state, out_t = body(state, in_t)
//     outputs: the last state, and all out_t stacked
//
// Slices are taken and stacked along any axis, from the front or from the back. Before opset 9 this happens
// for each element of a batch, along axis 1, for the length of the element's sequence.
#include <algorithm>
#include <cstring>

#include "op/opset.h"
#include "ops/common/shape_helpers.h"
#include "ops/control/control_flow.h"

namespace ortrain {
namespace {

// `first` is the first state among the inputs of the node: before opset 9 the lengths come before it.
struct Counts {
  size_t first, states, scanned, stacks;
};

Counts counts_of(const Node& node, int64_t opset) {
  const size_t first = opset < since::kScanWithoutBatch ? 1 : 0;
  const int64_t scanned = node.int_or("num_scan_inputs", -1);
  require(scanned >= 1 && static_cast<size_t>(scanned) + first <= node.inputs.size(),
          ErrorCode::kInvalidGraph, node.label(),
          ": attribute 'num_scan_inputs' should be between 1 and the number of inputs, found ", scanned);
  const size_t states = node.inputs.size() - static_cast<size_t>(scanned) - first;
  const size_t given = subgraph_of(node, "body").outputs.size();
  require(given >= states, ErrorCode::kInvalidGraph, node.label(), ": its body must have at least ",
          counted(states, "output"), ", found ", given);
  return {first, states, static_cast<size_t>(scanned), given - states};
}

// Entry k of an optional list of integers.
int64_t entry(const Node& node, const char* attribute, size_t k) {
  const std::vector<int64_t> all = node.ints_or(attribute, {});
  return k < all.size() ? all[k] : 0;
}

size_t axis_entry(const Node& node, const char* attribute, size_t k, size_t rank) {
  return static_cast<size_t>(
      normalize_axis(entry(node, attribute, k), static_cast<int64_t>(rank), node.label()));
}

// Before opset 9: every value has a batch axis, and sequences have a sequence axis after the batch axis.
void batched_types(TypeContext& c) {
  const Node& node = c.node();
  const Counts n = counts_of(node, c.opset());
  std::vector<ValueInfo> inputs;
  std::vector<Dim> axes = {c.unknown(), c.unknown()};
  for (size_t k = 0; k < n.states + n.scanned; ++k) {
    ValueInfo value = c.input(n.first + k);
    const size_t own = k < n.states ? 1 : 2;
    if (value.dims && value.dims->size() >= own) {
      std::copy_n(value.dims->begin(), own, axes.begin());
      value.dims->erase(value.dims->begin(), value.dims->begin() + static_cast<std::ptrdiff_t>(own));
    } else {
      value.dims.reset();
    }
    inputs.push_back(std::move(value));
  }
  const CarriedTypes known = carried_types(c, "body", inputs, 0, n.states, 0);
  for (size_t o = 0; o < node.outputs.size() && o < known.results.size(); ++o) {
    ValueInfo value = o < n.states ? known.carried[o] : known.results[o];
    if (value.dims)
      value.dims->insert(value.dims->begin(), axes.begin(), axes.end() - (o < n.states ? 1 : 0));
    c.output(o, value.dtype, value.dims);
  }
}

void types(TypeContext& c) {
  if (c.opset() < since::kScanWithoutBatch) return batched_types(c);
  const Node& node = c.node();
  const Counts n = counts_of(node, c.opset());
  std::vector<ValueInfo> inputs;
  for (size_t k = 0; k < n.states; ++k) inputs.push_back(c.input(k));
  Dim length = c.unknown();
  for (size_t k = 0; k < n.scanned; ++k) {
    ValueInfo slice = c.input(n.states + k);
    if (slice.dims && !slice.dims->empty()) {
      const size_t axis = axis_entry(node, "scan_input_axes", k, slice.dims->size());
      length = (*slice.dims)[axis];
      slice.dims->erase(slice.dims->begin() + static_cast<std::ptrdiff_t>(axis));
    }
    inputs.push_back(std::move(slice));
  }
  const CarriedTypes known = carried_types(c, "body", inputs, 0, n.states, 0);
  for (size_t o = 0; o < node.outputs.size() && o < known.results.size(); ++o) {
    if (o < n.states) {
      c.output(o, known.carried[o].dtype, known.carried[o].dims);
      continue;
    }
    ValueInfo stack = known.results[o];
    if (stack.dims) {
      const size_t axis = axis_entry(node, "scan_output_axes", o - n.states, stack.dims->size() + 1);
      stack.dims->insert(stack.dims->begin() + static_cast<std::ptrdiff_t>(axis), length);
    }
    c.output(o, stack.dtype, stack.dims);
  }
}

// One input, slice by slice.
class Slices {
 public:
  Slices(DynamicContext& c, const Tensor& all, size_t axis, bool reverse, TensorBuffer& memory)
      : all_(all), axis_(axis), reverse_(reverse), count_(all.shape()[axis]), memory_(memory) {
    shape_ = all.shape();
    shape_.erase(shape_.begin() + static_cast<std::ptrdiff_t>(axis));
    const size_t width = size_of(all.dtype());
    if (width == 0) c.reject("tensors of type ", to_string(all.dtype()), " cannot be sliced");
    const std::vector<int64_t> strides = strides_of(all.shape());
    step_ = static_cast<size_t>(strides[axis]) * width;
    if (axis_ == 0) return;
    std::vector<int64_t> source = strides;
    source.erase(source.begin() + static_cast<std::ptrdiff_t>(axis));
    copy_.emplace(width, shape_, StridedCopy::View{0, source}, StridedCopy::View{0, strides_of(shape_)});
  }

  const Tensor& at(int64_t t) {
    std::byte* from = all_.raw() + step_ * static_cast<size_t>(reverse_ ? count_ - 1 - t : t);
    if (axis_ == 0) return slice_ = Tensor(all_.dtype(), shape_, from);
    const Tensor& slice = memory_.reset(all_.dtype(), shape_);
    (*copy_)(from, slice.raw());
    return slice;
  }

 private:
  const Tensor& all_;
  size_t axis_;
  bool reverse_;
  int64_t count_;
  TensorBuffer& memory_;
  Shape shape_;
  size_t step_ = 0;  // bytes between slices
  Tensor slice_;
  std::optional<StridedCopy> copy_;
};

// Where the outputs of an iteration are stored: states alternate between two buffers; slices are stored
// directly in the stack, or in memory from which they are copied there.
class Places : public OutputPlaces {
 public:
  Places(DynamicContext& c, const Counts& n, int64_t count)
      : states(n.states), c_(c), n_(n), count_(count), stacks_(n.stacks) {}

  int64_t iteration = 0;
  std::vector<const Tensor*> states;  // results of the iteration

  const Tensor& place(size_t o, DType dtype, const Shape& shape) override {
    if (o < n_.states)
      return *(states[o] = &c_.buffer(2 * o + static_cast<size_t>(iteration % 2)).reset(dtype, shape));
    const size_t k = o - n_.states;
    Stack& stack = stacks_.at(k);
    if (iteration == 0) {
      c_.expect(!is_packed(dtype), "output ", o, " stacks values of type ", to_string(dtype),
                ", whose elements are smaller than a byte; cast them in the body");
      stack.axis = axis_entry(c_.node(), "scan_output_axes", k, shape.size() + 1);
      const Shape whole = stacked(shape, count_, stack.axis);
      c_.check_limits(o, dtype, whole);
      stack.whole = c_.has_output(o) ? &c_.out(o, dtype, whole) : &memory(k, 1).reset(dtype, whole);
    }
    c_.expect(iteration == 0 || (stack.slice.dtype() == dtype && stack.slice.shape() == shape), "output ", o,
              " stacks a result of the body, but that was ", to_string(stack.slice.dtype()),
              to_string(stack.slice.shape()), " in iteration ", iteration - 1, " and is ", to_string(dtype),
              to_string(shape), " in iteration ", iteration);
    if (stack.axis == 0) return stack.slice = Tensor(dtype, shape, target(stack, k));
    return stack.slice = memory(k, 0).reset(dtype, shape);
  }

  // Copies the slices of the iteration into stacks that are not along axis 0.
  void stack_slices() {
    for (size_t k = 0; k < stacks_.size(); ++k) {
      const Stack& stack = stacks_[k];
      if (stack.axis == 0) continue;
      const Shape& shape = stack.slice.shape();
      std::vector<int64_t> strides = strides_of(stack.whole->shape());
      strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(stack.axis));
      StridedCopy(size_of(stack.slice.dtype()), shape, {0, strides_of(shape)}, {0, strides})(
          stack.slice.raw(), target(stack, k));
    }
  }

 private:
  struct Stack {
    const Tensor* whole = nullptr;
    size_t axis = 0;
    Tensor slice;
  };
  TensorBuffer& memory(size_t k, size_t which) { return c_.buffer(2 * (n_.states + k) + which); }
  std::byte* target(const Stack& stack, size_t k) const {
    const bool reverse = entry(c_.node(), "scan_output_directions", k) != 0;
    const int64_t at = reverse ? count_ - 1 - iteration : iteration;
    const size_t step = static_cast<size_t>(strides_of(stack.whole->shape())[stack.axis]);
    return stack.whole->raw() + step * size_of(stack.whole->dtype()) * static_cast<size_t>(at);
  }

  DynamicContext& c_;
  Counts n_;
  int64_t count_;
  std::vector<Stack> stacks_;
};

// Where the outputs of an iteration are stored before opset 9: slices go directly into the result.
class BatchedPlaces : public OutputPlaces {
 public:
  BatchedPlaces(DynamicContext& c, const Counts& n, int64_t batch, int64_t length)
      : states(n.states),
        c_(c),
        n_(n),
        batch_(batch),
        length_(length),
        slices_(n.stacks),
        stacks_(n.stacks) {}

  int64_t element = 0, step = 0;
  std::vector<const Tensor*> states;  // results of the iteration

  const Tensor& place(size_t o, DType dtype, const Shape& shape) override {
    if (o < n_.states)
      return *(states[o] = &c_.buffer(2 * o + static_cast<size_t>(step % 2)).reset(dtype, shape));
    const size_t k = o - n_.states;
    if (!stacks_[k]) {
      const Shape whole = stacked(stacked(shape, length_), batch_);
      c_.check_limits(o, dtype, whole);
      stacks_[k] =
          c_.has_output(o) ? &c_.out(o, dtype, whole) : &c_.buffer(2 * n_.states + k).reset(dtype, whole);
      if (stacks_[k]->bytes() > 0) std::memset(stacks_[k]->raw(), 0, stacks_[k]->bytes());  // short sequences
    } else {
      c_.expect(slices_[k].dtype() == dtype && slices_[k].shape() == shape, "output ", o,
                " stacks a result of the body, but that was ", to_string(slices_[k].dtype()),
                to_string(slices_[k].shape()), " before and is ", to_string(dtype), to_string(shape),
                " in iteration ", step, " of batch element ", element);
    }
    const size_t bytes = static_cast<size_t>(element_count(shape)) * size_of(dtype);
    return slices_[k] = Tensor(dtype, shape,
                               stacks_[k]->raw() + bytes * static_cast<size_t>(element * length_ + step));
  }

 private:
  DynamicContext& c_;
  Counts n_;
  int64_t batch_, length_;
  std::vector<Tensor> slices_;
  std::vector<const Tensor*> stacks_;
};

void run_batched(DynamicContext& c) {
  const Node& node = c.node();
  const Counts n = counts_of(node, c.opset());
  const Graph& body = subgraph_of(node, "body");
  c.expect(body.inputs.size() == n.states + n.scanned, "its body must have ",
           counted(n.states + n.scanned, "input"), ", found ", body.inputs.size());
  c.expect(c.rank(n.first + n.states) >= 2, "scanned inputs must have a batch axis and a sequence axis");
  const int64_t batch = c.shape(n.first + n.states)[0], length = c.shape(n.first + n.states)[1];
  for (size_t i = n.first; i < node.inputs.size(); ++i) {
    const bool sequence = i >= n.first + n.states;
    c.expect(
        c.rank(i) >= (sequence ? 2 : 1) && c.shape(i)[0] == batch && (!sequence || c.shape(i)[1] == length),
        "input ", i, " has shape ", to_string(c.shape(i)), ", expected a batch of ", batch,
        sequence ? concat(" and sequences of ", length) : "");
  }
  std::vector<int64_t> lengths(static_cast<size_t>(batch), length);
  if (c.has_input(0)) lengths = c.in(0).to_int64();
  c.expect(lengths.size() == static_cast<size_t>(batch), "input 0 must have ", counted(batch, "length"),
           ", found ", lengths.size());

  // Element b of a batch, or step t of that element.
  const auto part = [](const Tensor& all, int64_t b, int64_t t, size_t axes) {
    const Shape shape(all.shape().begin() + static_cast<std::ptrdiff_t>(axes), all.shape().end());
    const size_t bytes = static_cast<size_t>(element_count(shape)) * size_of(all.dtype());
    return Tensor(all.dtype(), shape,
                  all.raw() + bytes * static_cast<size_t>(axes == 1 ? b : b * all.shape()[1] + t));
  };
  BatchedPlaces places(c, n, batch, length);
  std::vector<const Tensor*> results(n.states);
  std::vector<Tensor> given(n.states + n.scanned);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t steps = lengths[static_cast<size_t>(b)];
    c.expect(steps >= 0 && steps <= length, "sequence ", b, " has length ", steps, ", outside [0, ", length,
             "]");
    std::vector<ValueRef> inputs;
    for (size_t k = 0; k < given.size(); ++k) inputs.push_back(given[k]);
    for (size_t k = 0; k < n.states; ++k) given[k] = part(c.in(n.first + k), b, 0, 1);
    places.element = b;
    for (int64_t t = 0; t < steps; ++t) {
      places.step = t;
      for (size_t k = 0; k < n.scanned; ++k) {
        const bool reverse = entry(node, "directions", k) != 0;
        given[n.states + k] = part(c.in(n.first + n.states + k), b, reverse ? steps - 1 - t : t, 2);
      }
      c.run_body("body", inputs, places, b * length + t);
      std::copy(places.states.begin(), places.states.end(), inputs.begin());
    }
    for (size_t k = 0; k < n.states; ++k) {
      if (!c.has_output(k)) continue;
      const Tensor& last = *inputs[k].tensor();
      if (!results[k]) results[k] = &c.out(k, last.dtype(), stacked(last.shape(), batch));
      part(*results[k], b, 0, 1).copy_from(last);
    }
  }
}

void run(DynamicContext& c) {
  if (c.opset() < since::kScanWithoutBatch) return run_batched(c);
  const Node& node = c.node();
  const Graph& body = subgraph_of(node, "body");
  const Counts n = counts_of(node, c.opset());
  c.expect(body.inputs.size() == node.inputs.size(), "its body must have ",
           counted(node.inputs.size(), "input"), ", found ", body.inputs.size());
  c.expect(body.outputs.size() >= c.output_count(), "its body must have at least ",
           counted(c.output_count(), "output"), ", found ", body.outputs.size());

  int64_t count = -1;
  std::deque<Slices> slices;
  const size_t own = 2 * (n.states + n.stacks);  // buffers of the outputs come first
  for (size_t k = 0; k < n.scanned; ++k) {
    const Tensor& all = c.in(n.states + k);
    c.expect(!all.shape().empty(), "input ", n.states + k, " has no axis to scan along");
    const size_t axis = axis_entry(node, "scan_input_axes", k, all.shape().size());
    const int64_t dim = all.shape()[axis];
    c.expect(count < 0 || dim == count, "all scanned inputs must have the same length, found ", count,
             " and ", dim, " (input ", n.states + k, ")");
    count = dim;
    slices.emplace_back(c, all, axis, entry(node, "scan_input_directions", k) != 0, c.buffer(own + k));
  }

  Places places(c, n, count);
  std::vector<ValueRef> inputs;
  for (size_t k = 0; k < n.states; ++k) inputs.push_back(c.in(k));
  inputs.resize(node.inputs.size());
  for (int64_t t = 0; t < count; ++t) {
    places.iteration = t;
    for (size_t k = 0; k < n.scanned; ++k) inputs[n.states + k] = slices[k].at(t);
    c.run_body("body", inputs, places, t);
    places.stack_slices();
    std::copy(places.states.begin(), places.states.end(), inputs.begin());
  }
  for (size_t k = 0; k < n.states; ++k) c.set(k, inputs[k]);
  if (count > 0) return;

  std::vector<ValueInfo> given;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    ValueInfo& info = given.emplace_back(info_of(c.value(k)));
    if (k < n.states) continue;
    const size_t axis = axis_entry(node, "scan_input_axes", k - n.states, info.dims->size());
    info.dims->erase(info.dims->begin() + static_cast<std::ptrdiff_t>(axis));
  }
  const std::vector<ValueInfo> known = c.body_types("body", given);
  for (size_t k = 0; k < n.stacks; ++k) {
    const size_t o = n.states + k;
    if (!c.has_output(o)) continue;
    const size_t rank = known[o].dims ? known[o].dims->size() + 1 : 1;
    stack_nothing(c, o, known[o], axis_entry(node, "scan_output_axes", k, rank));
  }
}

// A Scan in the other direction (ops/control/loop_gradient.cpp).
void gradient(GradientContext& g) {
  if (g.opset() < since::kScanWithoutBatch)
    g.reject("its gradient is supported from opset 9 on, where it has no batch axis; convert the model");
  const Counts n = counts_of(g.node(), g.opset());
  loop_gradient(g, {.carried = n.states, .scanned = n.scanned});
}

std::string subgraph_fault(const Node& node, int64_t opset) {
  const size_t first = opset < since::kScanWithoutBatch ? 1 : 0;
  const int64_t scanned = node.int_or("num_scan_inputs", -1);
  const size_t values = node.inputs.size() - std::min(node.inputs.size(), first);
  if (scanned < 1 || static_cast<size_t>(scanned) > values)
    return concat("attribute 'num_scan_inputs' should be between 1 and the number of inputs, found ",
                  scanned);
  return body_fault(node, values, std::max(values - static_cast<size_t>(scanned), node.outputs.size()));
}

ORTRAIN_OPERATOR({.type = "Scan",
                  .subgraph_fault = subgraph_fault,
                  .rules = {.gradient = gradient, .types = types},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
