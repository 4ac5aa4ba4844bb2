// Helpers of LSTM, GRU and RNN: sizes and strides, checks of inputs, activations, and the matrix products
// that run over all time steps at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/matmul/product.h"
#include "backend/cpu/reduce/reduction.h"
#include "op/operator.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {

// The dimensions of a recurrent layer, and the positions of rows in its values. T: steps, B: batch, D:
// directions, H: hidden.
//
// With layout 0 sequences are [T, B, I], results [T, D, B, H] and states [D, B, H]; with layout 1 they are
// [B, T, I], [B, T, D, H] and [B, D, H]. Values that the forward pass keeps for the backward pass (gates,
// cells) have a row of n elements for each step, sample and direction: [2, T, B, n] for two directions and
// [T, 1, B, n] for one, with T and B swapped for layout 1.
struct Recurrent {
  int64_t steps, batch, input, hidden, directions, gates;
  bool batch_first;
  bool reverse;  // the (first) direction walks from the end

  int64_t width() const { return gates * hidden; }
  int64_t rows() const { return steps * batch; }
  // The row of step t of sample b in a sequence.
  int64_t row(int64_t t, int64_t b) const { return batch_first ? b * steps + t : t * batch + b; }
  // Rows between neighbouring samples.
  int64_t sample_rows() const { return batch_first ? steps : 1; }
  // Offset of a vector of H in a result.
  int64_t result(int64_t t, int64_t d, int64_t b) const {
    return (batch_first ? (b * steps + t) * directions + d : (t * directions + d) * batch + b) * hidden;
  }
  // Offset of a vector of H in a state.
  int64_t state(int64_t d, int64_t b) const {
    return (batch_first ? b * directions + d : d * batch + b) * hidden;
  }
  bool backward(int64_t d) const { return reverse || d == 1; }

  Shape sequence_shape(int64_t n) const {
    return batch_first ? Shape{batch, steps, n} : Shape{steps, batch, n};
  }
  Shape result_shape() const {
    return batch_first ? Shape{batch, steps, directions, hidden} : Shape{steps, directions, batch, hidden};
  }
  Shape state_shape() const {
    return batch_first ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  }
  Shape kept_shape(int64_t n) const;
};

// Reads the dimensions from X, W and R, inputs 0, 1 and 2, and checks them and the attributes that all three
// layers have.
Recurrent read_recurrent(const NodeContext& c, int64_t gates);
// Reads only X; the number of hidden values is given. Does not read the weights.
Recurrent read_recurrent(const NodeContext& c, int64_t gates, int64_t hidden);
// Input i, if the node has it, must have the type of X and this shape.
void expect_input(const NodeContext& c, size_t i, const Shape& shape, const char* what);
// Input i, sequence_lens, if the node has it, must be int32 [B].
void expect_lengths(const NodeContext& c, size_t i, const Recurrent& r);

// The number of steps of each sample: the given numbers, or T.
class Lengths {
 public:
  Lengths() = default;
  Lengths(KernelContext& c, size_t i, const Recurrent& r);
  // Throws if a length is not in [0, T].
  void check(const Frame& f) const;
  int64_t of(const Frame& f, int64_t b) const { return slot_.defined() ? f.at<int32_t>(slot_)[b] : steps_; }
  bool given() const { return slot_.defined(); }

 private:
  Slot slot_;
  int64_t steps_ = 0, batch_ = 0;
  std::string label_;
};

enum class ActivationKind {
  kAffine,
  kRelu,
  kLeakyRelu,
  kThresholdedRelu,
  kTanh,
  kScaledTanh,
  kSigmoid,
  kHardSigmoid,
  kElu,
  kSoftsign,
  kSoftplus
};

// An activation function as a node names it, with the values of its parameters.
struct ActivationChoice {
  ActivationKind kind;
  std::string_view function;       // the operator that computes it, empty for Affine
  UnaryFunction (*kernel)(DType);  // null for Affine
  double alpha, beta;
};
// The activation functions of all directions, beginning with the first direction.
std::vector<ActivationChoice> choose_activations(const Node& node, size_t directions,
                                                 const std::vector<std::string_view>& defaults);

// One of ONNX's activation functions, whose argument is first clipped to [-clip, clip].
class GateActivation {
 public:
  // y[i] = f(clip(x[i])) for i < n; y may be x.
  template <typename T>
  void apply(const T* x, T* y, int64_t n) const;
  template <typename T>
  void apply(T* x, int64_t n) const {
    apply<T>(x, x, n);
  }
  // d[i] *= f'(x) where f(clip(x)) = y[i].
  template <typename T>
  void scale_by_derivative(const T* y, T* d, int64_t n) const;
  // Whether the function is of this kind and its argument is not clipped.
  bool is(ActivationKind kind) const { return kind_ == kind && clip_ == HUGE_VAL; }
  // This function without the clipping of its argument.
  GateActivation unclipped() const {
    GateActivation a = *this;
    a.clip_ = HUGE_VAL;
    return a;
  }

 private:
  friend std::vector<GateActivation> read_activations(const NodeContext& c, const Recurrent& r,
                                                      const std::vector<std::string_view>& defaults);
  using Kind = ActivationKind;
  Kind kind_ = Kind::kTanh;
  UnaryFunction function_;  // undefined for Affine
  double alpha_ = 0, beta_ = 0;
  double clip_ = HUGE_VAL;
  double at_limits_[2] = {0, 0};  // f(-clip), f(clip): there the argument was clipped and the derivative is 0
};

// The activations of all directions, beginning with the first direction.
std::vector<GateActivation> read_activations(const NodeContext& c, const Recurrent& r,
                                             const std::vector<std::string_view>& defaults);

// Calls f(direction, first sample, past the last sample) for parts of the batch, on all threads: samples do
// not depend on each other, so one thread computes all steps of a part.
template <typename F>
void for_samples(const Recurrent& r, F&& f) {
  const int64_t parts = std::clamp<int64_t>(max_threads() / r.directions, 1, std::max<int64_t>(r.batch, 1));
  const int64_t work = r.rows() * r.hidden * r.width() / parts;
  parallel_for(r.directions * parts, work, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i % parts;
      f(i / parts, r.batch * part / parts, r.batch * (part + 1) / parts);
    }
  });
}

// A product with recurrent weights that each step computes: with rows of R [D, G H, H], or with their
// transpose. If a layer has many steps, the weights are packed before the first step.
template <typename T>
class StepProduct {
 public:
  StepProduct(KernelContext& c, const Recurrent& r, Slot weights, int64_t first_row, int64_t rows,
              bool transposed);
  // Before the steps of a run.
  void prepare(const Frame& f) const;
  // y = a b or y + a b for the weights of direction d, on this thread.
  void run(const Frame& f, int64_t d, int64_t m, MatrixView<const T> a, bool add, T* y, int64_t y_row) const;

 private:
  MatrixView<const T> operand(const Frame& f, int64_t d) const;

  Slot weights_, packed_;
  int64_t directions_, direction_size_, start_, hidden_, k_, n_, packed_size_ = 0;
  bool transposed_;
};

// gates [D][rows, G H] = X Wᵀ + Wb, with Rb added on the first `summed` gates; b [D, 2 G H] or null.
template <typename T>
void input_products(const Recurrent& r, const T* x, const T* w, const T* b, int64_t summed, T* gates);

// The columns [first, first + count) of values that are kept as [D][rows, width].
template <typename T>
struct Columns {
  const T* data;
  int64_t width, first, count;
};
// For each direction d, y + d * y_step, [count of a, count of b], = aᵀ b. `shared`: b is the sequence, which
// all directions share.
template <typename T>
void transposed_product(const Recurrent& r, Columns<T> a, Columns<T> b, bool shared, T* y, int64_t y_step);

// Sums over the rows of values that are kept as [D][rows, count].
template <typename T>
class RowSums {
 public:
  RowSums(KernelContext& c, const Recurrent& r, int64_t count, bool wanted);
  // For each direction d, y + d * y_step, [count], = the sums.
  void run(const Frame& f, const T* a, T* y, int64_t y_step) const;
  // The gradients of the biases of both products, which are equal: y [D, 2 count].
  void run_twice(const Frame& f, const T* a, T* y) const;

 private:
  Reduction sum_;
  Slot work_;
  int64_t directions_, rows_, count_;
};

// dX = sum over directions gates W
template <typename T>
void sequence_gradient(const Recurrent& r, const T* gates, const T* w, T* dx);

// The gradient of R for layers whose gates all multiply the state before the step (LSTM and RNN).
template <typename T>
class StateWeightGradient {
 public:
  StateWeightGradient(KernelContext& c, const Recurrent& r, const Lengths& lengths, bool wanted);
  // dR [D, G H, H] from the gradients of the gates [D][rows, G H], the results, and the initial state or
  // null.
  void run(const Frame& f, const T* changes, const T* results, const T* initial, T* dr) const;

 private:
  Recurrent r_;
  Lengths lengths_;
  Slot previous_;  // undefined if the results of a neighbouring step are the states
};

// previous [D][rows, H]: the state before each step, from the results (Y) and the initial state (or null).
template <typename T>
void gather_previous(const Recurrent& r, const Frame& f, const Lengths& lengths, const T* results,
                     const T* initial, T* previous);

// Copies a state from [D][B, H], the layout of kernels, to the layout of the layer, or back; a null source is
// zero.
template <typename T>
void state_out(const Recurrent& r, const T* held, T* state);
template <typename T>
void state_in(const Recurrent& r, const T* state, T* held);

// For gradient rules: an input or the gradient of an output, empty if the node does not have it.
Name x_or_empty(const GradientContext& g, size_t i);
Name dy_or_empty(const GradientContext& g, size_t o);
// Sets the gradients of the inputs `of` that the node has and that need a gradient.
void set_gradients(GradientContext& g, std::span<const size_t> of, const Names& gradients);

}  // namespace ortrain
