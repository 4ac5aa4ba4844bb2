// TreeEnsemble, and its older forms TreeEnsembleRegressor and TreeEnsembleClassifier (ai.onnx.ml): decision
// trees whose leaves add weights to targets.
//
// All three operators are read into one table of nodes. A row of X walks down every tree, and the weights of
// the leaves that it reaches are aggregated per target: their sum, mean (over the trees), smallest or
// largest. There is no gradient: the result is constant almost everywhere.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "ops/ml/ml.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Test : uint8_t { kLessEqual, kLess, kGreaterEqual, kGreater, kEqual, kNotEqual, kMember, kLeaf };
enum class Aggregate { kAverage, kSum, kMin, kMax };

struct Branch {
  Test test = Test::kLeaf;
  bool missing_is_true = false;  // the branch for NaN
  int64_t feature = 0;
  double value = 0;
  int64_t yes = 0, no = 0;      // nodes
  int64_t first = 0, last = 0;  // of members, or of a leaf's weights
};
struct Weight {
  int64_t target;
  double weight;
};

struct Ensemble {
  std::vector<Branch> nodes;
  std::vector<int64_t> roots;
  std::vector<Weight> weights;
  std::vector<double> members, base;
  Aggregate aggregate = Aggregate::kSum;
  PostTransform transform = PostTransform::kNone;
  int64_t targets = 1, features = 0;  // number of features that the tests read

  // Rejects trees that cannot be traversed: nodes out of range, and cycles.
  void check(const NodeContext& c) {
    const int64_t count = static_cast<int64_t>(nodes.size());
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> state(nodes.size(), kNew);
    for (const int64_t root : roots) {
      std::vector<int64_t> path = {root};
      while (!path.empty()) {
        const int64_t at = path.back();
        c.expect(at >= 0 && at < count, "a branch leads to node ", at, ", expected an index below ", count);
        const Branch& node = nodes[static_cast<size_t>(at)];
        uint8_t& mark = state[static_cast<size_t>(at)];
        if (mark == kNew && node.test != Test::kLeaf) {
          mark = kOpen;
          c.expect(node.feature >= 0 && node.feature < INT64_MAX, "node ", at, " tests the invalid feature ",
                   node.feature);
          features = std::max(features, node.feature + 1);
          for (const int64_t next : {node.yes, node.no}) {
            c.expect(next < 0 || next >= count || state[static_cast<size_t>(next)] != kOpen,
                     "the branches of node ", next, " lead back to it");
            if (next < 0 || next >= count || state[static_cast<size_t>(next)] == kNew) path.push_back(next);
          }
        } else {
          mark = kDone;
          path.pop_back();
        }
      }
    }
    c.expect(features <= Rows(c).features, "its trees use ", counted(features, "feature"),
             ", but its input has shape ", to_string(c.shape(0)));
    for (const Weight& w : weights)
      c.expect(w.target >= 0 && w.target < targets, "a leaf has target ", w.target,
               ", expected an index below ", targets);
    c.expect(base.empty() || base.size() == 1 || static_cast<int64_t>(base.size()) == targets, "it has ",
             counted(base.size(), "base value"), " for ", counted(targets, "target"));
  }

  const Branch& leaf(int64_t root, const double* x) const {
    const Branch* node = &nodes[static_cast<size_t>(root)];
    while (node->test != Test::kLeaf) {
      const double v = x[node->feature];
      node = &nodes[static_cast<size_t>(holds(*node, v) ? node->yes : node->no)];
    }
    return *node;
  }
  bool holds(const Branch& node, double v) const {
    if (std::isnan(v) && node.missing_is_true) return true;
    switch (node.test) {
      case Test::kLessEqual:
        return v <= node.value;
      case Test::kLess:
        return v < node.value;
      case Test::kGreaterEqual:
        return v >= node.value;
      case Test::kGreater:
        return v > node.value;
      case Test::kEqual:
        return v == node.value;
      case Test::kNotEqual:
        return v != node.value && !std::isnan(v);
      default:
        return std::find(members.begin() + node.first, members.begin() + node.last, v) !=
               members.begin() + node.last;
    }
  }

  // The scores of a row, before the transformation.
  void predict(const double* x, double* scores) const {
    const double start = aggregate == Aggregate::kMin   ? std::numeric_limits<double>::infinity()
                         : aggregate == Aggregate::kMax ? -std::numeric_limits<double>::infinity()
                                                        : 0;
    std::fill(scores, scores + targets, start);
    for (const int64_t root : roots) {
      const Branch& reached = leaf(root, x);
      for (int64_t k = reached.first; k < reached.last; ++k) {
        const Weight& w = weights[static_cast<size_t>(k)];
        double& score = scores[w.target];
        score = aggregate == Aggregate::kMin   ? std::min(score, w.weight)
                : aggregate == Aggregate::kMax ? std::max(score, w.weight)
                                               : score + w.weight;
      }
    }
    for (int64_t t = 0; t < targets; ++t) {
      if (std::isinf(scores[t]) && scores[t] == start) scores[t] = 0;  // no leaf has this target
      if (aggregate == Aggregate::kAverage) scores[t] /= static_cast<double>(roots.size());
      if (!base.empty()) scores[t] += base[base.size() == 1 ? 0 : static_cast<size_t>(t)];
    }
  }
};

std::vector<double> tensor_of(const NodeContext& c, const char* name) {
  const auto at = c.node().attributes.find(name);
  if (at == c.node().attributes.end()) return {};
  const auto* tensor = std::get_if<Tensor>(&at->second);
  c.expect(tensor != nullptr, "attribute ", name, " must hold a tensor");
  return tensor->to_double();
}

// The lists of one prefix must all have the same length.
void expect_length(const NodeContext& c, const char* name, size_t found, size_t wanted,
                   bool optional = false) {
  c.expect(found == wanted || (optional && found == 0), "attribute ", name, " has ", counted(found, "value"),
           ", expected ", wanted);
}

// TreeEnsemble: inner nodes and leaves are numbered separately; leaves follow the nodes in the table.
std::shared_ptr<const Ensemble> read_new(const NodeContext& c) {
  auto e = std::make_shared<Ensemble>();
  const auto ints = [&](const char* name) { return c.node().ints_or(name, {}); };
  const std::vector<int64_t> features = ints("nodes_featureids"), yes = ints("nodes_truenodeids"),
                             no = ints("nodes_falsenodeids"), yes_leaf = ints("nodes_trueleafs"),
                             no_leaf = ints("nodes_falseleafs"),
                             missing = ints("nodes_missing_value_tracks_true"),
                             leaf_targets = ints("leaf_targetids");
  const std::vector<double> modes = tensor_of(c, "nodes_modes"), splits = tensor_of(c, "nodes_splits"),
                            leaf_weights = tensor_of(c, "leaf_weights"),
                            members = tensor_of(c, "membership_values");
  const size_t n = modes.size();
  expect_length(c, "nodes_featureids", features.size(), n);
  expect_length(c, "nodes_splits", splits.size(), n);
  expect_length(c, "nodes_truenodeids", yes.size(), n);
  expect_length(c, "nodes_falsenodeids", no.size(), n);
  expect_length(c, "nodes_trueleafs", yes_leaf.size(), n);
  expect_length(c, "nodes_falseleafs", no_leaf.size(), n);
  expect_length(c, "nodes_missing_value_tracks_true", missing.size(), n, true);
  expect_length(c, "leaf_weights", leaf_weights.size(), leaf_targets.size());
  auto next_set = [&, at = size_t{0}]() mutable {
    const size_t first = at;
    while (at < members.size() && !std::isnan(members[at])) ++at;
    const size_t last = at;
    if (at < members.size()) ++at;
    return std::pair{static_cast<int64_t>(first), static_cast<int64_t>(last)};
  };
  const auto node_at = [&](int64_t id, bool leaf) {
    const int64_t count = static_cast<int64_t>(leaf ? leaf_targets.size() : n);
    c.expect(id >= 0 && id < count, "a branch leads to ", leaf ? "leaf " : "node ", id,
             ", expected an index below ", count);
    return id + (leaf ? static_cast<int64_t>(n) : 0);
  };
  for (size_t i = 0; i < n; ++i) {
    c.expect(modes[i] >= 0 && modes[i] <= 6, "node ", i, " has mode ", modes[i], ", expected 0 to 6");
    Branch b{static_cast<Test>(static_cast<int>(modes[i])),
             !missing.empty() && missing[i] != 0,
             features[i],
             splits[i],
             node_at(yes[i], yes_leaf[i] != 0),
             node_at(no[i], no_leaf[i] != 0)};
    if (b.test == Test::kMember) std::tie(b.first, b.last) = next_set();
    e->nodes.push_back(b);
  }
  e->members = members;
  for (size_t i = 0; i < leaf_targets.size(); ++i) {
    Branch leaf;
    leaf.first = static_cast<int64_t>(i), leaf.last = leaf.first + 1;
    e->nodes.push_back(leaf);
    e->weights.push_back({leaf_targets[i], leaf_weights[i]});
  }
  e->roots = ints("tree_roots");
  e->targets = c.node().int_or("n_targets", 1);
  const int64_t how = c.node().int_or("aggregate_function", 1), after = c.node().int_or("post_transform", 0);
  c.expect(how >= 0 && how <= 3 && after >= 0 && after <= 4,
           "attributes aggregate_function and post_transform must be in [0, 3] and [0, 4], found ", how,
           " and ", after);
  e->aggregate = static_cast<Aggregate>(how);
  e->transform = static_cast<PostTransform>(after);
  e->check(c);
  return e;
}

Aggregate read_aggregate(const NodeContext& c) {
  const std::string how = c.node().string_or("aggregate_function", "SUM");
  static constexpr std::string_view kNames[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  const auto name = std::find(std::begin(kNames), std::end(kNames), how);
  c.expect(name != std::end(kNames), "attribute aggregate_function must be AVERAGE, SUM, MIN or MAX, found '",
           how, "'");
  return static_cast<Aggregate>(name - std::begin(kNames));
}

// The forms before version 5: nodes and weights have the ids of their tree and node.
std::shared_ptr<const Ensemble> read_old(const NodeContext& c, const std::string& leaf, int64_t targets) {
  auto e = std::make_shared<Ensemble>();
  const auto ints = [&](const std::string& name) { return c.node().ints_or(name, {}); };
  const std::vector<int64_t> trees = ints("nodes_treeids"), ids = ints("nodes_nodeids"),
                             features = ints("nodes_featureids"), yes = ints("nodes_truenodeids"),
                             no = ints("nodes_falsenodeids"),
                             missing = ints("nodes_missing_value_tracks_true");
  const std::vector<double> values = numbers_of(c, "nodes_values"),
                            weights = numbers_of(c, leaf + "_weights");
  const std::vector<int64_t> weight_trees = ints(leaf + "_treeids"), weight_nodes = ints(leaf + "_nodeids"),
                             weight_targets = ints(leaf + "_ids");
  const auto at = c.node().attributes.find("nodes_modes");
  c.expect(at != c.node().attributes.end() && std::holds_alternative<std::vector<std::string>>(at->second),
           "attribute nodes_modes must hold strings");
  const auto& modes = std::get<std::vector<std::string>>(at->second);
  const size_t n = modes.size();
  expect_length(c, "nodes_treeids", trees.size(), n);
  expect_length(c, "nodes_nodeids", ids.size(), n);
  expect_length(c, "nodes_featureids", features.size(), n);
  expect_length(c, "nodes_values", values.size(), n);
  expect_length(c, "nodes_truenodeids", yes.size(), n);
  expect_length(c, "nodes_falsenodeids", no.size(), n);
  expect_length(c, "nodes_missing_value_tracks_true", missing.size(), n, true);
  expect_length(c, (leaf + "_treeids").c_str(), weight_trees.size(), weights.size());
  expect_length(c, (leaf + "_nodeids").c_str(), weight_nodes.size(), weights.size());
  expect_length(c, (leaf + "_ids").c_str(), weight_targets.size(), weights.size());

  std::map<std::pair<int64_t, int64_t>, int64_t> place;  // (tree, node) → position
  std::set<int64_t> seen;                                // trees
  for (size_t i = 0; i < n; ++i) {
    c.expect(place.emplace(std::pair{trees[i], ids[i]}, static_cast<int64_t>(i)).second, "tree ", trees[i],
             " has two nodes with the number ", ids[i]);
    // The first node of a tree is its root.
    if (seen.insert(trees[i]).second) e->roots.push_back(static_cast<int64_t>(i));
  }
  static constexpr std::string_view kModes[] = {"BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE",
                                                "BRANCH_GT",  "BRANCH_EQ", "BRANCH_NEQ"};
  std::vector<std::vector<Weight>> leaves(n);
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto found = place.find({weight_trees[i], weight_nodes[i]});
    c.expect(found != place.end(), "a weight belongs to node ", weight_nodes[i], " of tree ", weight_trees[i],
             ", which does not exist");
    leaves[static_cast<size_t>(found->second)].push_back({weight_targets[i], weights[i]});
  }
  for (size_t i = 0; i < n; ++i) {
    Branch b;
    b.first = static_cast<int64_t>(e->weights.size());
    if (modes[i] == "LEAF") {
      e->weights.insert(e->weights.end(), leaves[i].begin(), leaves[i].end());
      b.last = static_cast<int64_t>(e->weights.size());
    } else {
      const auto mode = std::find(std::begin(kModes), std::end(kModes), modes[i]);
      c.expect(mode != std::end(kModes), "node ", i, " has the unknown mode '", modes[i], "'");
      const auto child = [&](int64_t id) {
        const auto found = place.find({trees[i], id});
        c.expect(found != place.end(), "node ", ids[i], " of tree ", trees[i], " leads to node ", id,
                 ", which does not exist");
        return found->second;
      };
      b.test = static_cast<Test>(mode - std::begin(kModes));
      b.missing_is_true = !missing.empty() && missing[i] != 0;
      b.feature = features[i];
      b.value = values[i];
      b.yes = child(yes[i]);
      b.no = child(no[i]);
    }
    e->nodes.push_back(b);
  }
  e->targets = targets;
  e->base = numbers_of(c, "base_values");
  e->transform = read_post_transform(c);
  e->aggregate = read_aggregate(c);
  e->check(c);
  return e;
}

// Runs an ensemble on the rows of input 0. The rows are divided into shares, at most as many as there are
// threads, and each share has memory for one row as doubles and for its scores.
class Prediction {
 public:
  Prediction(KernelContext& c, std::shared_ptr<const Ensemble> ensemble)
      : e_(std::move(ensemble)),
        rows_(c),
        dtype_(c.dtype(0)),
        x_(c.in(0)),
        shares_(std::min<int64_t>(rows_.count, max_threads())),
        row_(c.scratch(static_cast<size_t>(shares_ * rows_.features) * sizeof(double))),
        scores_(c.scratch(static_cast<size_t>(shares_ * e_->targets) * sizeof(double))) {
    visit_ml(c, 0, [](auto) {});
  }

  // Calls f(row, its scores) for all rows, on all threads.
  template <typename F>
  void run(const Frame& frame, F&& f) const {
    const int64_t cost = static_cast<int64_t>(e_->roots.size()) * 32;
    parallel_for(
        shares_, rows_.count / std::max<int64_t>(1, shares_) * cost, [&](int64_t begin, int64_t end) {
          for (int64_t share = begin; share < end; ++share) {
            double* row = frame.at<double>(row_) + share * rows_.features;
            double* scores = frame.at<double>(scores_) + share * e_->targets;
            for (int64_t i = rows_.count * share / shares_; i < rows_.count * (share + 1) / shares_; ++i) {
              read_numbers(dtype_, frame.at<std::byte>(x_), i * rows_.features, (i + 1) * rows_.features,
                           row);
              e_->predict(row, scores);
              f(i, scores);
            }
          }
        });
  }
  const Ensemble& ensemble() const { return *e_; }

 private:
  std::shared_ptr<const Ensemble> e_;
  Rows rows_;
  DType dtype_;
  Slot x_;
  int64_t shares_;
  Slot row_, scores_;
};

// Old: TreeEnsembleRegressor, which TreeEnsemble replaces.
template <bool Old>
std::shared_ptr<const Ensemble> read_regressor(const NodeContext& c) {
  if (!Old) return read_new(c);
  const int64_t targets = c.node().int_or("n_targets", 1);
  c.expect(targets >= 1, "attribute n_targets must be positive, found ", targets);
  return read_old(c, "target", targets);
}

template <bool Old>
void regressor_shape(ShapeContext& c) {
  c.output(0, Old ? DType::kFloat : c.dtype(0), {Rows(c).count, read_regressor<Old>(c)->targets});
}

template <bool Old>
Kernel regressor_kernel(KernelContext& c) {
  const Prediction prediction(c, read_regressor<Old>(c));
  const int64_t targets = prediction.ensemble().targets;
  const Slot y = c.out(0);
  // Scores are transformed in float even if the result is double.
  const Slot floats = c.scratch(static_cast<size_t>(c.out_size(0)) * sizeof(float));
  Kernel kernel;
  visit_floating(c.out_dtype(0), [&](auto out) {
    using Y = decltype(out);
    kernel = [=](const Frame& f) {
      const PostTransform transform = prediction.ensemble().transform;
      prediction.run(f, [&](int64_t i, const double* scores) {
        Y* to = f.at<Y>(y) + i * targets;
        if (transform == PostTransform::kNone) {
          std::copy(scores, scores + targets, to);
          return;
        }
        float* s = f.at<float>(floats) + i * targets;
        std::copy(scores, scores + targets, s);
        transform_scores(transform, s, targets);
        std::copy(s, s + targets, to);
      });
    };
  });
  return kernel;
}

// A classifier of two classes may have weights for only one class: the score s of that class decides. If all
// weights are probabilities (none is negative), s > 1/2 means the second class, and the scores are 1 - s and
// s; otherwise s > 0 does, and they are -s and s.
struct TreeClassifier {
  std::shared_ptr<const Ensemble> trees;
  Labels labels;
  bool binary = false, positive = true;
  int64_t only = 0;  // the class that has weights

  explicit TreeClassifier(const NodeContext& c) : labels(c, "classlabels_int64s") {
    c.expect(!labels.empty(), "it has neither classlabels_int64s nor classlabels_strings");
    trees = read_old(c, "class", static_cast<int64_t>(labels.size()));
    std::vector<int64_t> seen;
    for (const Weight& w : trees->weights) {
      positive &= w.weight >= 0;
      if (std::find(seen.begin(), seen.end(), w.target) == seen.end()) seen.push_back(w.target);
    }
    binary = labels.size() <= 2 && seen.size() == 1;
    if (binary) only = seen[0];
  }
  int64_t width() const { return binary ? 2 : static_cast<int64_t>(labels.size()); }
  int64_t label(size_t place) const {
    if (labels.size() == 1) return place == 1 ? labels[0] : 0;
    return labels[place];
  }
};

void classifier_shape(ShapeContext& c) {
  const TreeClassifier k(c);
  if (c.has_output(0)) c.output(0, k.labels.type(), {Rows(c).count});
  if (c.has_output(1)) c.output(1, DType::kFloat, {Rows(c).count, k.width()});
}

Kernel classifier_kernel(KernelContext& c) {
  const TreeClassifier k(c);
  const int64_t width = k.width();
  const Prediction prediction(c, k.trees);
  const Slot unwanted = c.scratch(static_cast<size_t>(Rows(c).count * width) * sizeof(float));
  const Slot label = c.has_output(0) ? c.out(0) : Slot{}, y = c.has_output(1) ? c.out(1) : unwanted;
  return [=](const Frame& f) {
    prediction.run(f, [&](int64_t i, const double* scores) {
      float* to = f.at<float>(y) + i * width;
      size_t best;
      if (k.binary) {
        const double s = scores[k.only];
        best = s > (k.positive ? 0.5 : 0.0) ? 1 : 0;
        to[0] = static_cast<float>(k.positive ? 1 - s : -s);
        to[1] = static_cast<float>(s);
      } else {
        std::copy(scores, scores + width, to);
        best = static_cast<size_t>(std::max_element(to, to + width) - to);
      }
      transform_scores(k.trees->transform, to, width);
      if (label.defined()) f.at<int64_t>(label)[i] = k.label(best);
    });
  };
}

ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "TreeEnsemble",
                  .rules = {.shape = regressor_shape<false>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = regressor_kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "TreeEnsembleRegressor",
                  .rules = {.shape = regressor_shape<true>, .element_type = always<DType::kFloat>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = regressor_kernel<true>}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "TreeEnsembleClassifier",
                  .rules = {.shape = classifier_shape, .element_type = classifier_types},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = classifier_kernel}});

}  // namespace
}  // namespace ortrain
