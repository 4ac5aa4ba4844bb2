#include "geometry/convolution.h"

#include <limits>
#include <string_view>

namespace ortrain {

Activation read_activation(const Node& node) {
  using Kind = Activation::Kind;
  static constexpr struct {
    std::string_view name;
    Kind kind;
    float a, b;
  } kKnown[] = {
      {"", Kind::kNone, 0, 0},
      {"Relu", Kind::kRelu, 0, 0},
      {"LeakyRelu", Kind::kLeakyRelu, 0.01f, 0},
      {"Clip", Kind::kClip, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max()},
      {"Sigmoid", Kind::kSigmoid, 0, 0},
      {"Tanh", Kind::kTanh, 0, 0},
      {"HardSigmoid", Kind::kHardSigmoid, 0.2f, 0.5f},
  };
  const std::string name = node.string_or("activation", "");
  for (const auto& known : kKnown) {
    if (known.name != name) continue;
    Activation activation{known.kind, known.a, known.b};
    if (const auto at = node.attributes.find("activation_params"); at != node.attributes.end()) {
      const auto* given = std::get_if<std::vector<float>>(&at->second);
      require(given && given->size() <= 2, ErrorCode::kInvalidGraph, node.label(),
              ": attribute activation_params must hold at most two floats");
      if (given->size() > 0) activation.a = (*given)[0];
      if (given->size() > 1) activation.b = (*given)[1];
    }
    return activation;
  }
  fail(ErrorCode::kInvalidGraph, node.label(), ": attribute activation is '", name,
       "', expected Relu, LeakyRelu, Clip, Sigmoid, Tanh or HardSigmoid");
}

}  // namespace ortrain
