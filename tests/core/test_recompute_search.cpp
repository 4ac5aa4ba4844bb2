// The search of recomputation, on steps made up of layers: a product whose results are large and expensive,
// and a function of them whose results are small and cheap.
#include <numeric>
#include <optional>
#include <vector>

#include "catch.h"
#include "program/recompute_search.h"

using namespace ortrain;

namespace {

constexpr size_t kLarge = 1 << 20, kSmall = 1 << 16;
constexpr double kProduct = 1e-3, kFunction = 1e-5;

struct Layers {
  std::vector<StepNode> nodes;
  RecomputationSearch::Values values;

  int value(size_t bytes, bool forward) {
    values.bytes.push_back(bytes);
    values.must_keep.push_back(!forward);
    values.read_backward.push_back(forward);
    return static_cast<int>(values.bytes.size()) - 1;
  }

  explicit Layers(int layers) {
    int flow = value(kSmall, true);
    values.must_keep[0] = true;
    nodes.push_back({.reads = {}, .makes = {flow}, .seconds = kFunction, .forward = true});
    std::vector<std::vector<int>> kept;
    for (int i = 0; i < layers; ++i) {
      const int large = value(kLarge, true), small = value(kSmall, true);
      nodes.push_back({.reads = {flow}, .makes = {large}, .seconds = kProduct, .forward = true});
      nodes.push_back({.reads = {large}, .makes = {small}, .seconds = kFunction, .forward = true});
      kept.push_back({large, small});
      flow = small;
    }
    values.wanted.push_back(flow);
    values.must_keep[static_cast<size_t>(flow)] = true;
    int gradient = flow;
    for (; !kept.empty(); kept.pop_back()) {
      const int next = value(kSmall, false);
      nodes.push_back({.reads = {gradient, kept.back()[0], kept.back()[1]},
                       .makes = {next},
                       .scratch = 100,
                       .seconds = kProduct});
      gradient = next;
    }
  }

  RecomputationSearch search() const { return RecomputationSearch(nodes, values); }
  // What the choice computes again, and the bytes that it needs, found anew.
  StepCost cost(const Kept& kept) const { return StepEstimate(nodes, values.bytes, values.wanted)(kept, 0); }
};

}  // namespace

TEST_CASE("The estimate counts what is in memory at once, and what is computed again") {
  const Layers layers(2);
  Kept kept(layers.values.bytes.size(), true);
  // At the first node of the backward pass: the values of both layers and the new gradient.
  CHECK(layers.cost(kept).peak == 2 * kLarge + 3 * kSmall + 100);
  CHECK(layers.cost(kept).seconds == 0);
  kept[1] = false;  // the large value of the first layer
  CHECK(layers.cost(kept).peak == kLarge + 4 * kSmall + 100);
  CHECK(layers.cost(kept).seconds == kProduct);
}

TEST_CASE("What is cheap is dropped in all layers before anything expensive") {
  for (const int count : {20, 400}) {
    INFO(count << " layers");
    const Layers layers(count);
    RecomputationSearch search = layers.search();
    const size_t target = search.whole() - kSmall * static_cast<size_t>(count) * 8 / 10;
    const auto found = search.within(target);
    REQUIRE(found);
    CHECK(layers.cost(found->kept).peak <= target);
    CHECK(layers.cost(found->kept).seconds < count * kFunction);
  }
}

TEST_CASE("A choice meets its target, whatever was searched for before") {
  const Layers layers(60);
  RecomputationSearch search = layers.search();
  for (const double share : {0.95, 0.7, 0.5, 0.3, 0.6, 0.9}) {
    const auto target = static_cast<size_t>(share * static_cast<double>(search.whole()));
    INFO("target " << target << " of " << search.whole());
    const auto found = search.within(target);
    REQUIRE(found);
    const StepCost cost = layers.cost(found->kept);
    CHECK(cost.peak <= target);
    CHECK(cost.peak == found->cost.peak);
    CHECK(cost.seconds == found->cost.seconds);
    // A product more for each large value that does not fit, and at most a tenth more.
    const double products = static_cast<double>(search.whole() - target) / static_cast<double>(kLarge) + 1;
    CHECK(cost.seconds <= 1.1 * products * (kProduct + kFunction));
  }
  CHECK_FALSE(search.within(kSmall));
}

TEST_CASE("The least memory for some time takes that time and no more") {
  const Layers layers(60);
  RecomputationSearch search = layers.search();
  const auto found = search.least(20 * kProduct);
  REQUIRE(found);
  const StepCost cost = layers.cost(found->kept);
  CHECK(cost.seconds <= 20 * kProduct);
  CHECK(cost.seconds > 17 * kProduct);
  CHECK(cost.peak < search.whole() - 17 * kLarge);
  // A tenth less memory takes six products.
  CHECK_FALSE(layers.search().least(kProduct));
}
