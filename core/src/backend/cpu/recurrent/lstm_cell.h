// A step of an LSTM cell for one sample, forward and backward, with the usual functions: sigmoid for the
// gates, tanh for the candidate and the cell, no peepholes and no limits. Types: float and double.
#pragma once

#include <cstdint>

namespace ortrain {

// Rows of h elements; `gates`, `bias` and `changes` have four of them, in the order i, o, f, candidate.
template <typename T>
struct LstmCell {
  T* gates;                   // before: the arguments of the gates; after: their values
  const T* bias;              // added to the arguments; null if there is none
  T *cell, *state;            // before the step, then after it
  T *kept_cell, *kept_state;  // get copies of both after the step; either may be null
};

// C = f . C + i . c~, H = o . tanh(C), with the gates i, o, f = sigmoid and the candidate c~ = tanh of their
// arguments (ops/recurrent/lstm.cpp has the source).
template <typename T>
void lstm_cell(int64_t h, const LstmCell<T>& at);

template <typename T>
struct LstmCellGradient {
  const T *gates, *cell;  // after the step
  const T* last_cell;     // before the step, null if it is zero
  const T *dh, *dy;       // the gradient of the state is their sum; dy may be null
  T* dc;                  // the gradient of the cell after the step, then of the cell before it
  T* changes;             // the gradients of the gates' arguments
};

// The gradient of a step from the gates' values, which lstm_cell left.
template <typename T>
void lstm_cell_gradient(int64_t h, const LstmCellGradient<T>& at);

}  // namespace ortrain
