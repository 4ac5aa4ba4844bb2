#include "ops/common/scan_body.h"

namespace ortrain {

Names ScanBody::emit(std::string_view type, Inputs inputs, size_t count, NewAttributes attributes) {
  Node node{"", std::string(type), unique(), inputs.texts(), {}, attributes.made()};
  Names outputs;
  for (size_t o = 0; o < count; ++o) outputs.push_back(unique());
  node.outputs.assign(outputs.begin(), outputs.end());
  graph_->nodes.push_back(std::move(node));
  return outputs;
}

}  // namespace ortrain
