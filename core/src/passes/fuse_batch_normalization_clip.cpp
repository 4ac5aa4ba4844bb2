// The activation after a batch normalization in training mode becomes a part of it, forward and backward, so
// that the value between them is never stored:
//
//   Relu(BatchNormInternal(X, ...))  →  ClippedBatchNormInternal(X, ...), which has the bounds
//   BatchNormalizationGrad(ReluGrad(dZ, Z), X, ...)  →  ClippedBatchNormalizationGrad(dZ, X, ..., B)
//
// The same for Clip with constant bounds and ClipGrad. The backward pass computes the value between them
// again from X.
#include <algorithm>
#include <limits>

#include "geometry/batch_normalization.h"
#include "op/session_domain.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

using namespace batch_normalization;

class Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph), pattern_(graph) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const std::string& input : graph.nodes[n].inputs)
        if (!input.empty()) readers_[input].push_back(n);
  }

  struct Found {
    size_t normalization, activation, normalization_gradient;
    std::string dz;
    Attributes bounds;
  };
  std::optional<Found> match(size_t n) const {
    const Node& normalization = graph_.nodes[n];
    if (normalization.domain != kMicrosoft || normalization.op_type != "BatchNormInternal" ||
        normalization.int_or("training_mode", 1) == 0 || normalization.outputs.size() < 5)
      return std::nullopt;
    const std::string& y = normalization.outputs[0];
    Found found{n, 0, 0, "", {}};
    std::optional<size_t> gradient;
    if (const auto relu = reader(y, "", "Relu", 0); relu && pattern_.uses(y) == 1) {
      found.activation = *relu;
      found.bounds = {{kLow, 0.0f}, {kHigh, std::numeric_limits<float>::infinity()}, {kExcluded, 0.0f}};
      gradient = reader(graph_.nodes[*relu].outputs[0], kMicrosoft, "ReluGrad", 1);
    } else if (const auto clip = reader(y, "", "Clip", 0); clip && pattern_.uses(y) == 2) {
      found.activation = *clip;
      gradient = reader(y, kSessionDomain, "ClipGrad", 1);
      if (!gradient || !read_bounds(graph_.nodes[*clip], graph_.nodes[*gradient], found.bounds))
        return std::nullopt;
    }
    if (!gradient) return std::nullopt;
    const Node& activation_gradient = graph_.nodes[*gradient];
    const std::string& dy = activation_gradient.outputs[0];
    const auto last = reader(dy, kMicrosoft, "BatchNormalizationGrad", kGradDy);
    if (!last || pattern_.uses(dy) != 1) return std::nullopt;
    const Node& backward = graph_.nodes[*last];
    if (backward.inputs.size() != 5 || backward.inputs[kGradX] != normalization.inputs[kX] ||
        backward.inputs[kGradScale] != normalization.inputs[kScale] ||
        backward.inputs[kGradMean] != normalization.outputs[3] ||
        backward.inputs[kGradInverse] != normalization.outputs[4])
      return std::nullopt;
    found.normalization_gradient = *last;
    found.dz = activation_gradient.inputs[0];
    return found;
  }

 private:
  // The only node of this type that reads the value as input i.
  std::optional<size_t> reader(const std::string& value, std::string_view domain, std::string_view type,
                               size_t i) const {
    std::optional<size_t> found;
    if (const auto readers = readers_.find(value); readers != readers_.end())
      for (const size_t n : readers->second) {
        const Node& node = graph_.nodes[n];
        if (node.domain != domain || node.op_type != type || node.inputs.size() <= i ||
            node.inputs[i] != value)
          continue;
        if (found) return std::nullopt;
        found = n;
      }
    return found;
  }

  // The bounds of a Clip, if those of its gradient are the same floats.
  bool read_bounds(const Node& clip, const Node& gradient, Attributes& bounds) const {
    const float infinity = std::numeric_limits<float>::infinity();
    float low = -infinity, high = infinity;
    for (size_t i = 1; i < 3; ++i) {
      const char* name = i == 1 ? kLow : kHigh;
      const float none = i == 1 ? -infinity : infinity;
      float bound = clip.float_or(name, none);
      if (clip.has_input(i)) {
        const std::optional<Tensor> given = pattern_.constant(clip.inputs[i]);
        if (!given || given->dtype() != DType::kFloat || given->size() != 1) return false;
        bound = *given->data<float>();
      }
      if (!(gradient.float_or(name, none) == bound)) return false;
      (i == 1 ? low : high) = bound;
    }
    bounds = {{kLow, low}, {kHigh, high}};
    return low <= high;
  }

  const Graph& graph_;
  Pattern pattern_;
  std::unordered_map<std::string, std::vector<size_t>> readers_;
};

}  // namespace

bool fuse_batch_normalization_clip(Model& model) {
  Graph& graph = model.graph;
  std::vector<Search::Found> all;
  {
    const Search search(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto found = search.match(n)) all.push_back(std::move(*found));
  }
  for (Search::Found& found : all) {
    Node &normalization = graph.nodes[found.normalization], &activation = graph.nodes[found.activation],
         &gradient = graph.nodes[found.normalization_gradient];
    const auto clip = [&](Node& node, std::string_view type) {
      node.domain = kSessionDomain;
      node.op_type = type;
      node.attributes.insert(found.bounds.begin(), found.bounds.end());
    };
    clip(normalization, "ClippedBatchNormInternal");
    clip(gradient, "ClippedBatchNormalizationGrad");
    gradient.inputs[kGradDy] = found.dz;
    gradient.inputs.push_back(normalization.inputs[kBias]);
    // From here on, nothing reads the value between the two. The activation now produces this value, so it is
    // removed as an unused node, and so is its gradient.
    std::swap(normalization.outputs[0], activation.outputs[0]);
    activation.inputs.assign(1, normalization.outputs[0]);
    activation.op_type = "Identity";
    activation.attributes.clear();
  }
  return !all.empty();
}

}  // namespace ortrain
