// The settings of Dropout, which operators that include dropout in a larger kernel share.
#pragma once

#include <string>

#include "op/operator.h"

namespace ortrain {

inline void expect_scalar(const NodeContext& c, size_t i, const char* what) {
  if (c.has_input(i))
    c.expect(c.size(i) == 1, what, " must be a single value, found shape ", to_string(c.shape(i)));
}

// Reads ratio and training_mode of a node. Both are inputs since version 12; older nodes have neither input,
// and drop nothing.
class DropoutMode {
 public:
  DropoutMode(KernelContext& c, size_t ratio, size_t training) {
    if (c.has_input(ratio)) {
      if (!is_floating(c.dtype(ratio)) || size_of(c.dtype(ratio)) < 4) c.reject_dtype(ratio);
      ratio_ = c.in(ratio);
      wide_ = c.dtype(ratio) == DType::kDouble;
    }
    if (c.has_input(training)) {
      if (c.dtype(training) != DType::kBool) c.reject_dtype(training);
      training_ = c.in(training);
    }
    label_ = c.node().label();
  }

  // The probability with which an element is dropped; 0 if the node is not in training mode.
  double ratio(const Frame& f) const {
    if (!training_.defined() || !*f.at<bool>(training_)) return 0;
    if (!ratio_.defined()) return 0.5;
    const double ratio = wide_ ? *f.at<double>(ratio_) : static_cast<double>(*f.at<float>(ratio_));
    require(ratio >= 0 && ratio < 1, ErrorCode::kInvalidArgument, label_, ": ratio must be in [0, 1), found ",
            ratio);
    return ratio;
  }

 private:
  Slot ratio_, training_;
  bool wide_ = false;
  std::string label_;
};

}  // namespace ortrain
