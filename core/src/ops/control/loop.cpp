// Loop: a subgraph that runs repeatedly on its loop-carried values, for a number of iterations while a
// condition holds.
//
//     for t = 0 ... while t < M and condition:
//       condition, v, slices = body(t, condition, v)
//     outputs: v, and the slices of all t stacked along a new axis 0
#include "ops/control/control_flow.h"

namespace ortrain {
namespace {

constexpr size_t kCarried = 2;  // the first carried value among the inputs of the node and of the body

ValueInfo scalar_of(DType dtype) { return {"", dtype, std::vector<Dim>{}}; }

void types(TypeContext& c) {
  const Node& node = c.node();
  const size_t carried = node.inputs.size() - kCarried;
  std::vector<ValueInfo> inputs = {scalar_of(DType::kInt64), scalar_of(DType::kBool)};
  for (size_t k = 0; k < carried; ++k) inputs.push_back(c.input(kCarried + k));
  const CarriedTypes known = carried_types(c, "body", inputs, kCarried, carried, 1);
  const Dim count = c.unknown();
  for (size_t o = 0; o < node.outputs.size() && o + 1 < known.results.size(); ++o) {
    if (o < carried) {
      c.output(o, known.carried[o]);
      continue;
    }
    ValueInfo stack = known.results[o + 1];
    if (!stack.is_tensor())
      return c.reject(concat("output ", o, " stacks a result of the body that is not a tensor"));
    if (stack.dims) stack.dims->insert(stack.dims->begin(), count);
    c.output(o, stack.dtype, stack.dims);
  }
}

// Where the outputs of an iteration are stored: carried values alternate between two buffers, because an
// iteration reads the values of the iteration before; stacks grow.
class Places : public OutputPlaces {
 public:
  Places(DynamicContext& c, size_t carried, size_t stacks)
      : carried(carried), c_(c), carried_(carried), slices_(stacks), sequences_(2 * carried) {}

  int64_t iteration = 0;
  const Tensor* condition = nullptr;
  std::vector<ValueRef> carried;  // results of the iteration

  TensorBuffer& stack(size_t k) const { return c_.buffer(kOwn + 2 * carried_ + k); }

  const Tensor& place(size_t o, DType dtype, const Shape& shape) override {
    if (o == 0) return *(condition = &c_.buffer(0).reset(dtype, shape));
    if (o <= carried_) {
      const size_t k = o - 1;
      const Tensor& place = c_.buffer(kOwn + 2 * k + static_cast<size_t>(iteration % 2)).reset(dtype, shape);
      carried.at(k) = place;
      return place;
    }
    const size_t k = o - 1 - carried_;
    Tensor& slice = slices_.at(k);
    c_.expect(iteration == 0 || (slice.dtype() == dtype && slice.shape() == shape), "output ", carried_ + k,
              " stacks a result of the body, but that was ", to_string(slice.dtype()),
              to_string(slice.shape()), " in iteration ", iteration - 1, " and is ", to_string(dtype),
              to_string(shape), " in iteration ", iteration);
    c_.expect(!is_packed(dtype), "output ", carried_ + k, " stacks values of type ", to_string(dtype),
              ", whose elements are smaller than a byte; cast them in the body");
    const Shape grown = stacked(shape, iteration + 1);
    c_.check_limits(carried_ + k, dtype, grown);
    const Tensor& all = stack(k).reset(dtype, grown, iteration > 0);
    const size_t bytes = all.bytes() / static_cast<size_t>(iteration + 1);
    return slice = Tensor(dtype, shape, all.raw() + bytes * static_cast<size_t>(iteration));
  }
  void take(size_t o, const ValueRef& value) override {
    c_.expect(o > 0 && o <= carried_, "output ", o, " of its body is ", describe(value),
              ", expected a tensor");
    if (!value.sequence()) {
      carried.at(o - 1) = {};
      return;
    }
    Sequence& kept = sequences_[2 * (o - 1) + static_cast<size_t>(iteration % 2)];
    carried.at(o - 1) = kept = *value.sequence();
  }

 private:
  static constexpr size_t kOwn = 3;  // the condition, the two inputs that the node provides

  DynamicContext& c_;
  size_t carried_;
  std::vector<Tensor> slices_;
  std::vector<Sequence> sequences_;
};

void run(DynamicContext& c) {
  const Graph& body = subgraph_of(c.node(), "body");
  c.expect(c.input_count() >= kCarried, "it must have inputs for the trip count and the condition");
  const size_t carried = c.input_count() - kCarried;
  c.expect(body.inputs.size() == kCarried + carried, "its body must have ",
           counted(kCarried + carried, "input"), ", found ", body.inputs.size());
  c.expect(body.outputs.size() > carried && body.outputs.size() - 1 >= c.output_count(),
           "its body must have at least ", counted(std::max(carried, c.output_count()) + 1, "output"),
           ", found ", body.outputs.size());
  const size_t stacks = body.outputs.size() - 1 - carried;
  const int64_t most = c.single_value_or<int64_t>(0, INT64_MAX);
  bool goes_on = c.single_value_or<bool>(1, true);

  Places places(c, carried, stacks);
  const Tensor &number = c.buffer(1).reset(DType::kInt64, {}), &yes = c.buffer(2).reset(DType::kBool, {});
  *yes.data<bool>() = true;
  std::vector<ValueRef> inputs = {number, yes};
  for (size_t k = 0; k < carried; ++k) inputs.push_back(c.value(kCarried + k));
  for (; goes_on && places.iteration < most; ++places.iteration) {
    *number.data<int64_t>() = places.iteration;
    c.run_body("body", inputs, places, places.iteration);
    c.expect(places.condition->dtype() == DType::kBool && places.condition->size() == 1,
             "its body must return a single bool as the condition, found ",
             to_string(places.condition->dtype()), to_string(places.condition->shape()));
    goes_on = *places.condition->data<bool>();
    std::copy(places.carried.begin(), places.carried.end(), inputs.begin() + kCarried);
  }

  for (size_t k = 0; k < carried; ++k) c.set(k, inputs[kCarried + k]);
  std::vector<ValueInfo> known;
  for (size_t k = 0; k < stacks; ++k) {
    const size_t o = carried + k;
    if (!c.has_output(o)) continue;
    if (places.iteration > 0) {
      c.set(o, places.stack(k).tensor());
      continue;
    }
    if (known.empty()) {
      std::vector<ValueInfo> types;
      for (const ValueRef& input : inputs) types.push_back(info_of(input));
      known = c.body_types("body", types);
    }
    stack_nothing(c, o, known[1 + o], 0);
  }
}

// A loop over the iterations from the last to the first (ops/control/loop_gradient.cpp).
void gradient(GradientContext& g) {
  loop_gradient(g,
                {.first_input = kCarried, .first_result = 1, .carried = g.node().inputs.size() - kCarried});
}

std::string subgraph_fault(const Node& node, int64_t) {
  return body_fault(node, node.inputs.size(),
                    std::max(node.inputs.size() - kCarried, node.outputs.size()) + 1);
}

ORTRAIN_OPERATOR({.type = "Loop",
                  .subgraph_fault = subgraph_fault,
                  .rules = {.gradient = gradient, .types = types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
