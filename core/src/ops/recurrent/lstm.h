// The forward pass that LSTM and DynamicQuantizeLSTM share: all computations except the matrix products.
#pragma once

#include <functional>

#include "ops/recurrent/recurrent.h"

namespace ortrain {

template <typename T>
struct LstmProducts {
  // gates [D][rows, 4 H] = X Wᵀ, with the biases unless `bias` has them.
  std::function<void(const Frame&, T* gates)> inputs;
  // gates += states Rᵀ for the samples [first, last) of direction d; rows of the gates are `step` apart, rows
  // of the states H.
  std::function<void(const Frame&, int64_t d, int64_t first, int64_t last, const T* states, T* gates,
                     int64_t step)>
      states;
  // [D, 4 H], to be added to the gates; undefined if there is nothing to add.
  Slot bias;
};

// Checks inputs 4 to 7 and the attributes, and states the outputs.
void lstm_shape(ShapeContext& c, const Recurrent& r);

// The forward pass. Inputs 4 to 7 are sequence_lens?, initial_h?, initial_c? and P?.
template <typename T>
Kernel lstm_forward(KernelContext& c, const Recurrent& r, LstmProducts<T> products);

}  // namespace ortrain
