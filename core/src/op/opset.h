// The opsets of the ONNX domain in which operators changed, named by the change.
#pragma once

#include <cstdint>

namespace ortrain::since {

// Operands are broadcast as in NumPy; before, attributes stated whether and along which axis they are
// broadcast.
inline constexpr int64_t kBroadcasting = 7;
// Dropout drops elements only in training; before, Dropout dropped elements unless an attribute switched it
// off.
inline constexpr int64_t kDropoutInference = 7;
// Scan has no batch axis.
inline constexpr int64_t kScanWithoutBatch = 9;
// The mask of Dropout is of type bool.
inline constexpr int64_t kBoolDropoutMask = 10;
// Gemm has no C where there is nothing to add.
inline constexpr int64_t kGemmWithoutC = 11;
// Resize has coordinate transformations; before, Resize was equal to Upsample.
inline constexpr int64_t kResizeCoordinates = 11;
// Dropout takes ratio and training_mode as inputs.
inline constexpr int64_t kDropoutInputs = 12;
// ReduceSum, Squeeze, Unsqueeze and Split take axes and sizes as inputs.
inline constexpr int64_t kAxesAsInput = 13;
// Softmax, LogSoftmax and Hardmax run along one axis; before, they ran over this axis and all axes after it.
inline constexpr int64_t kOneSoftmaxAxis = 13;
// Reshape has allowzero.
inline constexpr int64_t kAllowZero = 14;
// BatchNormalization has training_mode; before, the number of its outputs stated the mode.
inline constexpr int64_t kTrainingMode = 14;
// Shape has start and end.
inline constexpr int64_t kShapeRange = 15;
// ScatterElements and ScatterND have reductions.
inline constexpr int64_t kScatterReduction = 16;
// RoiAlign has coordinate_transformation_mode.
inline constexpr int64_t kRoiCoordinates = 16;
// All other reductions take axes as an input too.
inline constexpr int64_t kReductionAxesAsInput = 18;
// Split has num_outputs.
inline constexpr int64_t kSplitCount = 18;
// DFT takes its axis as an input.
inline constexpr int64_t kDftAxisAsInput = 20;
// GridSample calls its modes linear and cubic; before, bilinear and bicubic.
inline constexpr int64_t kGridSampleModes = 20;
// QuantizeLinear takes scales of another type than its input.
inline constexpr int64_t kMixedScales = 23;
// The last axis of Attention's mask may be shorter than the number of keys.
inline constexpr int64_t kPaddedMasks = 24;

}  // namespace ortrain::since
