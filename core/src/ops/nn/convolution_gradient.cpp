#include "ops/nn/convolution_gradient.h"

#include <vector>

namespace ortrain {

// With u, v and b the gradients of dX, dW and dB, and y(X, W) the forward operator without its bias: the
// gradient of dY is y(u, W) + y(X, v) + b, the gradient of X is dX with v in place of W, and the gradient of
// W is dW with u in place of X.
void product_grad_gradient(GradientContext& g, const std::string& type, const std::string& grad) {
  const Attributes& attributes = g.node().attributes;
  const auto given = [&](size_t o) { return o < g.node().outputs.size() ? g.dy(o) : Name(); };
  const Name dy = g.x(0), x = g.x(1), w = g.x(2), u = given(0), v = given(1), b = given(2);
  if (g.needs(0)) {
    Names parts;
    if (!u.empty()) parts.push_back(g(type, {u, w}, attributes));
    if (!v.empty()) parts.push_back(g(type, {x, v}, attributes));
    if (!b.empty()) {
      const auto rank = g.rank(dy);
      if (!rank) g.reject("the rank of dY is not known; run ONNX shape inference on the model first");
      std::vector<int64_t> places;
      for (int64_t i = 2; i < *rank; ++i) places.push_back(i - 1);
      parts.push_back(g("Expand", {places.empty() ? b : g.unsqueeze(b, places), g("Shape", {dy})}));
    }
    if (!parts.empty()) g.set(0, parts.size() == 1 ? parts[0] : g("Sum", parts));
  }
  if (g.needs(1) && !v.empty()) g.set(1, g(grad, {dy, x, v}, attributes, kMicrosoft));
  if (g.needs(2) && !u.empty()) g.set(2, g.emit(grad, {dy, u, w}, 2, attributes, kMicrosoft)[1]);
}

}  // namespace ortrain
