// Scan: a subgraph that runs once for each slice of its inputs, carrying a state.
//
//     for t = 0 ... n-1:  state, out_t = body(state, in_t)
//     outputs: the last state, and all out_t stacked
//
// Slices are taken and stacked along any axis, from the front or from the back.
#include "ops/control_flow.h"
#include "ops/movement.h"

namespace ortrain {
namespace {

struct Counts {
  size_t states, scanned, stacks;
};

Counts counts_of(const Node& node) {
  const int64_t scanned = node.int_or("num_scan_inputs", -1);
  require(scanned >= 1 && static_cast<size_t>(scanned) <= node.inputs.size(), ErrorCode::kInvalidGraph,
          node.label(), ": attribute 'num_scan_inputs' should be between 1 and the number of inputs, found ",
          scanned);
  const size_t states = node.inputs.size() - static_cast<size_t>(scanned);
  const size_t given = subgraph_of(node, "body").outputs.size();
  require(given >= states, ErrorCode::kInvalidGraph, node.label(), ": its body must have at least ", states,
          " outputs, found ", given);
  return {states, static_cast<size_t>(scanned), given - states};
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

void types(TypeContext& c) {
  const Node& node = c.node();
  const Counts n = counts_of(node);
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

// Where the outputs of an iteration go: states alternate between two buffers, slices lie where they belong in
// the stack, or in memory from where they are copied there.
class Places : public OutputPlaces {
 public:
  Places(DynamicContext& c, const Counts& n, int64_t count)
      : states(n.states), c_(c), n_(n), count_(count), stacks_(n.stacks) {}

  int64_t iteration = 0;
  std::vector<const Tensor*> states;  // what the iteration gave

  const Tensor& place(size_t o, DType dtype, const Shape& shape) override {
    if (o < n_.states)
      return *(states[o] = &c_.buffer(2 * o + static_cast<size_t>(iteration % 2)).reset(dtype, shape));
    const size_t k = o - n_.states;
    Stack& stack = stacks_.at(k);
    if (iteration == 0) {
      stack.axis = axis_entry(c_.node(), "scan_output_axes", k, shape.size() + 1);
      const Shape whole = stacked(shape, count_, stack.axis);
      stack.whole = c_.has_output(o) ? &c_.out(o, dtype, whole) : &memory(k, 1).reset(dtype, whole);
    }
    c_.expect(iteration == 0 || (stack.slice.dtype() == dtype && stack.slice.shape() == shape), "output ", o,
              " stacks what the body gives, but that was ", to_string(stack.slice.dtype()),
              to_string(stack.slice.shape()), " in iteration ", iteration - 1, " and is ", to_string(dtype),
              to_string(shape), " in iteration ", iteration);
    if (stack.axis == 0) return stack.slice = Tensor(dtype, shape, target(stack, k));
    return stack.slice = memory(k, 0).reset(dtype, shape);
  }

  // Brings the slices of the iteration into stacks that are not along axis 0.
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

void run(DynamicContext& c) {
  const Node& node = c.node();
  const Graph& body = subgraph_of(node, "body");
  const Counts n = counts_of(node);
  c.expect(body.inputs.size() == node.inputs.size(), "its body must have ", node.inputs.size(),
           " inputs, found ", body.inputs.size());
  c.expect(body.outputs.size() >= c.output_count(), "its body must have at least ", c.output_count(),
           " outputs, found ", body.outputs.size());

  int64_t count = -1;
  std::deque<Slices> slices;
  const size_t own = 2 * (n.states + n.stacks);  // buffers of the outputs come first
  for (size_t k = 0; k < n.scanned; ++k) {
    const Tensor& all = c.in(n.states + k);
    c.expect(!all.shape().empty(), "input ", n.states + k, " has no axis to scan along");
    const size_t axis = axis_entry(node, "scan_input_axes", k, all.shape().size());
    const int64_t extent = all.shape()[axis];
    c.expect(count < 0 || extent == count, "all scanned inputs must have the same length, found ", count,
             " and ", extent, " (input ", n.states + k, ")");
    count = extent;
    slices.emplace_back(c, all, axis, entry(node, "scan_input_directions", k) != 0, c.buffer(own + k));
  }

  Places places(c, n, count);
  std::vector<const Tensor*> inputs;
  for (size_t k = 0; k < n.states; ++k) inputs.push_back(&c.in(k));
  inputs.resize(node.inputs.size());
  for (int64_t t = 0; t < count; ++t) {
    places.iteration = t;
    for (size_t k = 0; k < n.scanned; ++k) inputs[n.states + k] = &slices[k].at(t);
    c.run_body("body", inputs, places, t);
    places.stack_slices();
    std::copy(places.states.begin(), places.states.end(), inputs.begin());
  }
  for (size_t k = 0; k < n.states; ++k) c.set(k, *inputs[k]);
  if (count > 0) return;

  std::vector<ValueInfo> given;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    const Tensor& value = c.in(k);
    ValueInfo& info = given.emplace_back(ValueInfo{"", value.dtype(), std::vector<Dim>{}});
    for (const int64_t extent : value.shape()) info.dims->push_back(Dim{extent, ""});
    if (k < n.states) continue;
    const size_t axis = axis_entry(node, "scan_input_axes", k - n.states, value.shape().size());
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

// A Scan in the other direction (control_flow.h).
void gradient(GradientContext& g) {
  const Counts n = counts_of(g.node());
  loop_gradient(g, {.carried = n.states, .scanned = n.scanned});
}

ORTRAIN_OPERATOR({.type = "Scan", .gradient = gradient, .types = types, .run = run});

}  // namespace
}  // namespace ortrain
