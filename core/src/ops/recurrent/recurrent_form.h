// Helpers of the standard forms (op/standard_form.h) of LSTM, GRU and RNN in training.
//
// The forward pass stays one node. All states are known after it, so the gates of all steps follow from a few
// matrix products; only the cells of an LSTM, and the gradients of the states, are computed step by step, in
// a Scan.
#pragma once

#include <string>
#include <vector>

#include "op/standard_form.h"
#include "ops/common/scan_body.h"
#include "ops/recurrent/recurrent.h"

namespace ortrain {

// An activation function as nodes, with the clipping of its argument.
class ActivationForm {
 public:
  ActivationForm(DecompositionContext& e, const ActivationChoice& choice, double clip)
      : e_(&e), choice_(choice), clip_(clip) {}

  // f(clip(x)); `w` is the graph, or the body of a Scan.
  template <typename Writer>
  Name apply(Writer& w, Name x) const;
  // d f'(x) where y = f(clip(x)).
  template <typename Writer>
  Name scaled(Writer& w, Name d, Name y) const;

 private:
  Name number(double value) const { return e_->scalar_like(e_->x(0), value); }
  template <typename Writer>
  Name unclipped(Writer& w, Name d, Name y) const;
  double value_at(double x) const;

  DecompositionContext* e_;
  ActivationChoice choice_;
  double clip_;  // 0: none
};

// A layer, as nodes. Its functions return values of one direction, with the steps first for both layouts.
class RecurrentForm {
 public:
  // `lengths`: the input with the number of steps of each sample.
  RecurrentForm(DecompositionContext& e, int64_t gates, const std::vector<std::string_view>& activations,
                size_t lengths);

  int64_t directions() const { return directions_; }
  int64_t hidden() const { return hidden_; }
  bool backward(int64_t d) const {
    return d == 1 || e_.node().string_or("direction", "forward") == "reverse";
  }
  // Function `i` of a direction; the function of an LSTM's cell is not clipped.
  ActivationForm activation(int64_t d, size_t i, bool clipped = true) const;
  Name x() const { return x_; }        // [T, B, I]
  Name one() const { return one_; }    // 1 of the layer's type
  Name mask() const { return mask_; }  // [T, B, 1], empty without lengths
  Name weights(size_t i, int64_t d) const { return part(e_.x(i), 0, d); }

  // The forward node, with its results in the layout of the layer.
  Names forward(const char* type, size_t outputs) const;

  // The part [T, B, H] of one direction of a result [T, D, B, H].
  Name result(Name value, int64_t d) const;
  Name result_or_zeros(size_t i, int64_t d, Name like) const;
  // The part [B, H] of one direction of the state at input `i`; zeros if the node does not have the input.
  Name state(size_t i, int64_t d, Name like) const;
  // Values that the forward pass keeps, [T, B, n] for each direction: kept() takes the part of one direction,
  // joined_kept() joins the parts of all directions.
  Name kept(Name value, int64_t d) const;
  Name joined_kept(const Names& parts) const;
  // Parts of all directions along a new first axis.
  Name joined(const Names& parts) const;
  // Converts a sequence [T, B, I] or a state [D, B, H] to the layout of the layer.
  Name swapped(Name value) const;

  Name transposed(Name matrix) const;
  // The elements [first, last) of the last axis, in units of the hidden size.
  Name gates(Name value, int64_t first, int64_t last) const;
  Name rows(Name value, int64_t first, int64_t last) const;
  Name zeros_like(Name value) const;
  // The values [T, B, H] one step before, which begin with `initial` [B, H].
  Name previous(Name values, Name initial, int64_t d) const;
  Name one_step(Name values) const { return e_.squeeze(rows(values, 0, 1), {0}); }
  // The part of the bias that belongs to W or, if `recurrent`, to R.
  Name bias(int64_t d, int64_t first, int64_t last, bool recurrent) const;
  // X Wᵀ + H Rᵀ + bias for the gates [first, last) of all steps; without H, H Rᵀ is left out.
  Name arguments(int64_t d, Name h, int64_t first, int64_t last, bool recurrent_bias = true) const;
  // `a` and `b` are [T, B, n]: aᵀ b over all steps and samples.
  Name product_of_rows(Name a, Name b) const;

  // Runs a body over the steps. The inputs of the body are the states, then the sequences.
  Names scan(const ScanBody& body, const Names& states, const Names& sequences, bool from_end,
             size_t outputs) const;

  DecompositionContext& e_;

 private:
  Name part(Name value, int64_t axis, int64_t d) const;
  Name flat(Name value) const { return e_("Flatten", {value}, {{"axis", int64_t{2}}}); }

  int64_t gates_, directions_ = 1, hidden_ = 1;
  bool batch_first_;
  std::vector<ActivationChoice> activations_;
  Name x_, one_, mask_, is_last_;  // is_last_: at the last step of each sample
};

// The gradients of the weights, sums over all steps and samples.
struct WeightGradients {
  const RecurrentForm& layer;
  Names w, r, b, initial;
  Name x;

  // `of_w` and `of_r` are the gradients of X Wᵀ and H Rᵀ, the parts of W and R in the gates.
  void add(int64_t d, Name of_w, Name of_r, Name r_gradient, Name initial_gradient);
  void set() const;
};

// A layer with the batch first is written with the steps first: other runtimes have no kernel for batch-first
// layers.
inline bool is_batch_first(const Node& node) { return node.int_or("layout", 0) == 1; }
template <size_t kOutputs>
void forward_form(DecompositionContext& e, const char* type, int64_t gates,
                  const std::vector<std::string_view>& activations) {
  const Names y = RecurrentForm(e, gates, activations, 4).forward(type, kOutputs);
  for (size_t o = 0; o < kOutputs; ++o) e.set(o, y[o]);
}

}  // namespace ortrain
