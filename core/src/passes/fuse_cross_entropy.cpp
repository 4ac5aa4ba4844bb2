// The scores of a large vocabulary and their loss become one operator that never holds all scores
// (ops/nn/projected_cross_entropy.cpp):
//
//     scores = MatMul(h, W) or MatMulNBits(h, ...)                     [..., N]
//     loss, logs = SoftmaxCrossEntropyLoss(Transpose(scores), labels)  the classes are the second axis there
//     d = SoftmaxCrossEntropyLossGrad(dloss, logs, labels)
//     dh = FusedMatMul(Transpose(d), Wᵀ) or MatMulNBitsGrad(Transpose(d), ...)
//  →  loss, unit = ProjectedCrossEntropy(h, labels, W);  dh = Mul(unit, dloss)
//
// This applies if nothing else reads the scores, such as an output or a gradient of W, and N is large enough
// that the scores matter.
#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

#include "op/operator.h"
#include "op/session_domain.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

constexpr int64_t kManyClasses = 2048;

// Whether a node moves the last axis to the second place, or with `back` the second to the last.
bool moves_classes(const Node& node, bool back) {
  std::vector<int64_t> perm = node.ints_or("perm", {});
  if (perm.size() < 2) return false;
  std::vector<int64_t> wanted(perm.size());
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<int64_t>(i);
  if (back)
    std::rotate(wanted.begin() + 1, wanted.begin() + 2, wanted.end());
  else
    std::rotate(wanted.begin() + 1, wanted.end() - 1, wanted.end());
  return perm == wanted;
}

class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph), pattern_(graph) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const std::string& input : graph.nodes[n].inputs) readers_[input].push_back(n);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const std::string& output : graph.nodes[n].outputs) makers_[output] = n;
  }

  // The nodes that replace a loss.
  struct Match {
    size_t loss;
    Node fused;
    std::optional<size_t> product;  // the node that computes dh
    std::string incoming;           // the gradient of the loss
  };

  std::optional<Match> match(size_t n) const {
    const Node& loss = graph_.nodes[n];
    if (!loss.domain.empty() || loss.op_type != "SoftmaxCrossEntropyLoss" || loss.has_input(2) ||
        loss.string_or("reduction", "mean") == "none")
      return std::nullopt;
    const Node* moved = pattern_.made_by(loss.inputs[0], "Transpose");
    if (!moved || !moves_classes(*moved, false) || pattern_.uses(moved->outputs[0]) != 1 ||
        pattern_.uses(moved->inputs[0]) != 1)
      return std::nullopt;
    const auto at = makers_.find(moved->inputs[0]);
    if (at == makers_.end()) return std::nullopt;
    Match found{n, {}, std::nullopt, ""};
    if (!projected(graph_.nodes[at->second], loss, found.fused)) return std::nullopt;
    const std::string logs = loss.outputs.size() > 1 ? loss.outputs[1] : "";
    if (logs.empty() || pattern_.uses(logs) == 0) return found;
    return backward(graph_.nodes[at->second], logs, found) ? std::optional(found) : std::nullopt;
  }

 private:
  // Makes the fused node, if the scores are a matrix with many rows.
  bool projected(const Node& product, const Node& loss, Node& fused) const {
    fused = {kSessionDomain,    "ProjectedCrossEntropy",
             loss.name,         {product.inputs[0], loss.inputs[1]},
             {loss.outputs[0]}, {{"reduction", loss.string_or("reduction", "mean")}}};
    if (loss.has("ignore_index")) fused.attributes["ignore_index"] = loss.int_or("ignore_index", 0);
    if (product.domain == kMicrosoft && product.op_type == "MatMulNBits") {
      if (product.has_input(4) || product.has_input(5) || product.int_or("N", 0) < kManyClasses) return false;
      for (size_t i = 1; i < 4 && i < product.inputs.size(); ++i) fused.inputs.push_back(product.inputs[i]);
      for (const char* name : {"N", "K", "bits", "block_size"})
        if (product.has(name)) fused.attributes[name] = product.int_or(name, 0);
      return true;
    }
    if (!product.domain.empty() || product.op_type != "MatMul") return false;
    std::string weights = product.inputs[1];
    bool by_class = false;
    if (const Node* turned = pattern_.made_by(weights, "Transpose");
        turned && turned->ints_or("perm", {1, 0}) == std::vector<int64_t>{1, 0}) {
      weights = turned->inputs[0];
      by_class = true;
    }
    const std::optional<Tensor> matrix = pattern_.constant(weights);
    if (!matrix || matrix->shape().size() != 2 || matrix->shape()[by_class ? 0 : 1] < kManyClasses)
      return false;
    fused.inputs.push_back(weights);
    fused.attributes["transB"] = int64_t{by_class};
    return true;
  }

  const Node* only_reader(const std::string& value, size_t& place) const {
    const auto found = readers_.find(value);
    if (found == readers_.end() || found->second.size() != 1 || pattern_.uses(value) != 1) return nullptr;
    place = found->second[0];
    return &graph_.nodes[place];
  }

  bool backward(const Node& product, const std::string& logs, Match& found) const {
    size_t place = 0;
    const Node* slope = only_reader(logs, place);
    if (!slope || slope->domain != kMicrosoft || slope->op_type != "SoftmaxCrossEntropyLossGrad" ||
        slope->inputs[1] != logs)
      return false;
    const Node* back = only_reader(slope->outputs[0], place);
    if (!back || !back->domain.empty() || back->op_type != "Transpose" || !moves_classes(*back, true))
      return false;
    const Node* last = only_reader(back->outputs[0], place);
    if (!last || last->domain != kMicrosoft || last->inputs[0] != back->outputs[0]) return false;
    if (last->op_type == "MatMulNBitsGrad") {
      if (!std::equal(last->inputs.begin() + 1, last->inputs.end(), product.inputs.begin() + 1,
                      product.inputs.end()))
        return false;
    } else if (last->op_type != "FusedMatMul" || last->inputs[1] != product.inputs[1] ||
               last->float_or("alpha", 1) != 1 || last->int_or("transA", 0) != 0 ||
               last->int_or("transB", 0) != 1) {
      return false;
    }
    found.product = place;
    found.incoming = slope->inputs[0];
    found.fused.outputs.push_back(last->outputs[0] + "_unit");
    return true;
  }

  Graph& graph_;
  Pattern pattern_;
  std::unordered_map<std::string, std::vector<size_t>> readers_;
  std::unordered_map<std::string, size_t> makers_;
};

}  // namespace

bool fuse_cross_entropy(Model& model) {
  Graph& graph = model.graph;
  std::vector<Fusion::Match> found;
  {
    const Fusion fusion(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto match = fusion.match(n)) found.push_back(std::move(*match));
  }
  for (Fusion::Match& match : found) {
    if (match.product) {
      Node& last = graph.nodes[*match.product];
      last = {"", "Mul", last.name, {match.fused.outputs[1], match.incoming}, last.outputs, {}};
    }
    graph.nodes[match.loss] = std::move(match.fused);
  }
  if (!found.empty()) graph.remove_unused_nodes();
  return !found.empty();
}

}  // namespace ortrain
