#include "ops/common/scan_body.h"

namespace ortrain {

Names ScanBody::emit(const std::string& type, const Names& inputs, size_t count,
                     const Attributes& attributes) {
  Node node{"", type, unique(), inputs, {}, attributes};
  for (size_t o = 0; o < count; ++o) node.outputs.push_back(unique());
  graph_->nodes.push_back(node);
  return node.outputs;
}

}  // namespace ortrain
