// Convolution on values with channels last, stored as floats or in bfloat16, and computed in float or in
// pairs of bfloat16 values (backend/cpu/matmul/mixed_product.h): sums of matrix products without a matrix of
// columns.
//
// A block of results reads a few lines of the input. They are copied with their padding, so that elements of
// a window that are side by side are consecutive with all their channels, and neighboring results read them
// at a constant distance. The micro-kernel of matrix products (backend/cpu/matmul/product_tiles-inl.h)
// multiplies the lines in place: its rows are results, also of several lines, its columns filters.
//
// The gradient of X is computed from dY in the same way, once for each offset within the strides, because
// elements of dX with the same offset read the same elements of the window. The gradient of W is the product
// of dY, transposed in place, and the lines of X. With many filters, dY is stored by tiles before, and the
// elements of X are gathered for one element of the window at a time. In float and with one group, the
// gradient of pointwise weights is a single product instead (backend/cpu/matmul/multiply.h), unless X has
// very few channels.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/conv/pass_axis.h"
#include "backend/cpu/conv/row_major_conv.h"
#include "backend/cpu/stored_values.h"
#include "geometry/convolution.h"

namespace ortrain {

struct LinePlace;
template <typename T>
struct TileEnd;

// Results that read the same elements of the window, and how they are divided into blocks.
struct ConvPass {
  PassAxis axes[3];
  int64_t depth = 0, columns = 0;         // of a group: channels that are summed, results of a point
  int64_t units = 1, rows = 1, line = 1;  // a block: images times results of the outer axis, then the others
  int64_t outer = 1, height = 1, width = 1;  // copied elements of a unit
  int64_t packed = 0;                        // where its weights begin
  int64_t segments = 0;                      // parts of the sums of a result, see the source

  int64_t taps() const {
    return std::ssize(axes[0].taps) * std::ssize(axes[1].taps) * std::ssize(axes[2].taps);
  }
  int64_t unit_floats() const { return outer * height * width * depth; }
};

class ChannelsLastConvolution {
 public:
  // With `pairs`, operands of Y and dX are rounded to bfloat16 if channels and filters are even.
  [[gnu::cold]] explicit ChannelsLastConvolution(const ConvSizes& sizes, bool pairs = false);

  bool suits() const { return suits_; }
  bool in_pairs() const { return unit_ == 2; }
  // Floats of weights as the two products read them.
  int64_t packed_size() const { return packed_forward_ / unit_; }
  int64_t packed_backward_size() const { return packed_backward_ / unit_; }
  // Floats of memory for all workers; `bf16`: whether Y, dX or the dY of the weights' gradient is stored so.
  int64_t forward_work(bool bf16 = false) const;
  int64_t backward_data_work(bool bf16 = false) const;
  int64_t backward_weights_work(bool bf16 = false) const;

  // X [N, input..., C], W [M, kernel..., C / groups], Y [N, output..., M].
  void pack(const float* w, float* packed) const;
  void pack_backward(const float* w, float* packed) const;
  // Y = activation(X * W + bias + addend) with packed W; bias and addend may be null. The addend is stored
  // like Y, and may be Y.
  void forward(StoredInput x, const float* packed, const float* bias, StoredInput addend,
               const Activation& activation, StoredOutput y, float* work) const;
  // The same for `points` neighboring points and the filters [begin, end), on this thread, for windows of one
  // element and one group. `begin` must be a multiple of panel(), and y has only these filters. The
  // activation must be none, Relu or Clip.
  void forward_points(int64_t points, const float* x, const float* packed, const float* bias,
                      const Activation& activation, int64_t begin, int64_t end, float* y) const;
  // Filters that are computed together.
  static int64_t panel();
  // dX from dY and W, which `pack_backward` packed. If `bias` is not null, a value for each channel is added,
  // as in a transposed convolution.
  void backward_data(StoredInput dy, const float* packed, const float* bias, StoredOutput dx,
                     float* work) const;
  // dW from dY and X. The sums do not depend on the number of threads.
  void backward_weights(StoredInput dy, StoredInput x, float* dw, float* work) const;

 private:
  // A part of the results.
  struct Block {
    int64_t unit = 0, units = 0, row = 0, rows = 0, column = 0, columns = 0;
  };

  // What follows the sums of a pass.
  struct Ending {
    const float* bias;
    StoredInput addend;
    Activation activation;
  };

  // Some results of a pass: those of a block and of the panels [begin, end) of a group. They read `lines`,
  // whose points are `point` elements apart.
  struct Share {
    Block block;
    int64_t group = 0, begin = 0, end = 0;
    const float* lines = nullptr;
    int64_t point = 0;
    bool prefetches = false;  // the lines may have to come from memory: they are the source itself
  };

  // A part of the gradient of W: filters of a group, and `depth` of its channels from `channel` on.
  struct WeightTask {
    int64_t group = 0, channel = 0, depth = 0, filter = 0, filters = 0;
  };

  // dY as floats, and the distances between its points and its lines.
  struct Gradients {
    const float* dy;
    int64_t point, line;
  };

  // Divides a pass into blocks, if possible a multiple of `parts` of them.
  void plan(ConvPass& pass, int64_t depth, int64_t columns, int64_t parts) const;
  int64_t blocks(const ConvPass& pass) const;
  Block block(const ConvPass& pass, int64_t number) const;
  // Copies what the results read, `depth` channels from `channel` on of `channels`.
  template <typename T>
  void copy_lines(const ConvPass& pass, const Block& b, StoredInput source, int64_t channels, int64_t channel,
                  int64_t depth, T* lines) const;
  // Calls f(line of results, offset in the copy, offset in the target) for each line of a block.
  template <typename F>
  void each_line(const ConvPass& pass, const Block& b, F&& f) const;
  Gradients gradients(const WeightTask& t, StoredInput dy, int64_t result, int64_t lines, int64_t points,
                      float* widened) const;
  void add_weight_products(const WeightTask& t, const Gradients& g, const float* lines, int64_t at,
                           int64_t rows, int64_t points, bool add, float* sums) const;
  void gather(const WeightTask& t, StoredInput x, int64_t first, int64_t count, const int64_t* offsets,
              float* to) const;
  void gathered_weight_sums(const WeightTask& t, StoredInput dy, StoredInput x, float* dw, float* work) const;
  void weight_sums(const WeightTask& t, StoredInput dy, StoredInput x, float* dw, float* work) const;
  // Floats of a worker: for the copy, for sums of results in bfloat16, and for a gradient of weights.
  int64_t lines_size(const ConvPass& pass) const;
  int64_t lines_together(const ConvPass& pass) const;
  int64_t results_size(const ConvPass& pass, bool bf16) const;
  int64_t gathered_filters() const;
  int64_t weights_size(bool bf16) const;
  template <typename F>
  void each_batch_of_lines(const ConvPass& pass, const Block& b, F&& f) const;
  // Adds up the sums of a panel for some lines of a share, whose results are `pitch` floats apart in `sums`.
  void multiply(const ConvPass& pass, const Share& share, const LinePlace* places, int64_t count,
                int64_t panel, const float* packed, bool add, float* sums, int64_t pitch,
                const TileEnd<float>* end) const;
  // A share of a float target, in which the sums are computed, and of a bfloat16 target, whose sums are kept.
  void compute(const ConvPass& pass, const Share& share, const float* packed, const Ending& ending,
               float* target) const;
  void compute_narrow(const ConvPass& pass, const Share& share, const float* packed, const Ending& ending,
                      BFloat16* target, float* kept) const;
  void run(const ConvPass& pass, StoredInput source, const float* packed, const Ending& ending,
           StoredOutput target, float* work) const;

  ConvSizes sizes_;
  bool suits_ = false;
  int64_t unit_ = 1;  // elements of an operand in the place of a float
  int64_t workers_ = 1;
  ConvPass forward_, weights_;      // weights_: the blocks of X for the gradient of W
  std::vector<ConvPass> backward_;  // by offset within the strides
  // Whether the columns of the products of dW are filters instead of elements of the window, which are few.
  bool filters_across_ = false;
  bool gathers_ = false;                              // whether dW is computed from gathered elements of X
  int64_t packed_forward_ = 0, packed_backward_ = 0;  // elements of all packed weights
};

// Whether this processor computes them faster in pairs than in float.
bool convolutions_gain_from_pairs();

}  // namespace ortrain
