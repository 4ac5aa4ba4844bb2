#include "backend/cpu/optimizer/rule.h"

#include <algorithm>
#include <utility>

#include "runtime/convert.h"
#include "runtime/registry.h"
#include "runtime/tensor.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

Registry<std::string, OptimizerRule>& registry() {
  static Registry<std::string, OptimizerRule> all;
  return all;
}

}  // namespace

bool register_optimizer(OptimizerRule rule, SourcePlace where) {
  std::string name = rule.name;
  registry().add(name, std::move(rule), concat("optimizer '", name, "'"), where);
  return true;
}

const OptimizerRule* find_optimizer(std::string_view name) { return registry().find(std::string(name)); }

const OptimizerRule* optimizer_of_node(std::string_view op_type) {
  for (const OptimizerRule* rule : all_optimizers())
    if (rule->node == op_type && rule->reads_node) return rule;
  return nullptr;
}

std::vector<const OptimizerRule*> all_optimizers() {
  std::vector<const OptimizerRule*> all;
  registry().each([&](const OptimizerRule& rule) { all.push_back(&rule); });
  return all;
}

size_t OptimizerRule::setting(std::string_view wanted) const {
  for (size_t i = 0; i < settings.size(); ++i)
    if (wanted == settings[i].name) return i;
  return SIZE_MAX;
}

OptimizerValues OptimizerRule::defaults() const {
  OptimizerValues values;
  for (const OptimizerSetting& setting : settings) values.settings.push_back(setting.value);
  for (const ScalarDeclaration& scalar : scalars) values.scalars.push_back(scalar.value);
  return values;
}

double OptimizerStep::operator[](std::string_view name) const {
  return static_cast<double>(values.settings.at(rule.setting(name)));
}

size_t OptimizerRule::scalar(std::string_view wanted) const {
  for (size_t i = 0; i < scalars.size(); ++i)
    if (wanted == scalars[i].name) return i;
  fail(ErrorCode::kFail, "the optimizer ", title, " has no scalar '", wanted, "'");
}

double& OptimizerStep::scalar(std::string_view name) const { return values.scalars.at(rule.scalar(name)); }

namespace {

constexpr int64_t kPiece = 1024;  // 16-bit floats that are converted together
constexpr int64_t kBlock = 4096;  // elements that are summed together
constexpr int64_t kMostSegments = 128;

template <typename T>
struct Arrays {
  T* weights;
  const T* gradients;
  std::array<T*, kMostStates> states;

  Arrays from(int64_t i) const {
    Arrays later{weights + i, gradients + i, states};
    for (T*& state : later.states)
      if (state != nullptr) state += i;
    return later;
  }
};

template <typename T>
void update(const OptimizerPasses& p, const Arrays<T>& a, int64_t n, const T* factors, T scale) {
  if constexpr (sizeof(T) == 4)
    p.of_float(a.weights, a.gradients, a.states.data(), n, factors, scale);
  else
    p.of_double(a.weights, a.gradients, a.states.data(), n, factors, scale);
}

template <typename T>
void measure(const OptimizerPasses& p, const Arrays<T>& a, int64_t n, const T* factors, T scale,
             double* sums) {
  if constexpr (sizeof(T) == 4)
    p.measure_float(a.weights, a.gradients, a.states.data(), n, factors, scale, sums);
  else
    p.measure_double(a.weights, a.gradients, a.states.data(), n, factors, scale, sums);
}

// Calls f(arrays, n) for parts of a run in several threads. Elements of type T are computed in type C.
template <typename T, typename C, typename F>
void for_parts(const OptimizerRun& run, int64_t begin, int64_t end, F&& f) {
  auto* weights = reinterpret_cast<T*>(run.weights);
  const auto* gradients = reinterpret_cast<const T*>(run.gradients);
  std::array<C*, kMostStates> states;
  for (size_t k = 0; k < kMostStates; ++k) states[k] = reinterpret_cast<C*>(run.states[k]);
  if constexpr (std::is_same_v<T, C>) {
    f(Arrays<C>{weights, gradients, states}.from(begin), end - begin);
  } else {
    C w[kPiece], g[kPiece];
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t count = std::min(kPiece, end - at);
      widen(weights + at, w, count);
      widen(gradients + at, g, count);
      Arrays<C> piece = Arrays<C>{w, g, states}.from(at);
      piece.weights = w;
      piece.gradients = g;
      f(piece, count);
      narrow(w, weights + at, count);
    }
  }
}

template <typename C>
std::array<C, kMostFactors> rounded(const double* factors, size_t count) {
  std::array<C, kMostFactors> out{};
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<C>(factors[i]);
  return out;
}

// Sums over a tensor: segments of whole blocks are summed in order, so that the sums do not depend on the
// number of threads.
template <typename T, typename C>
void measure_tensor(const OptimizerPasses& p, const OptimizerRun& run, double* factors, double scale) {
  const auto given = rounded<C>(factors, p.factors);
  const int64_t blocks = (run.n + kBlock - 1) / kBlock;
  const int64_t length = std::max<int64_t>(1, (blocks + kMostSegments - 1) / kMostSegments) * kBlock;
  const int64_t segments = (run.n + length - 1) / length;
  std::array<std::array<double, kMostSums>, kMostSegments> parts{};
  parallel_for(segments, length * p.cost, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      for (int64_t at = s * length; at < std::min((s + 1) * length, run.n); at += kBlock)
        for_parts<T, C>(run, at, std::min(at + kBlock, run.n), [&](const Arrays<C>& a, int64_t n) {
          measure<C>(p, a, n, given.data(), static_cast<C>(scale), parts[static_cast<size_t>(s)].data());
        });
  });
  double sums[kMostSums] = {};
  for (int64_t s = 0; s < segments; ++s)
    for (size_t k = 0; k < p.sums; ++k) sums[k] += parts[static_cast<size_t>(s)][k];
  p.combine(sums, factors);
}

template <typename T, typename C>
void run_as(const OptimizerPasses& p, const OptimizerRun& run, const double* given, double scale) {
  double factors[kMostFactors];
  std::copy_n(given, p.factors, factors);
  if (p.sums > 0) measure_tensor<T, C>(p, run, factors, scale);
  const auto last = rounded<C>(factors, p.factors);
  const auto part = [&](int64_t begin, int64_t end) {
    for_parts<T, C>(run, begin, end, [&](const Arrays<C>& a, int64_t n) {
      update<C>(p, a, n, last.data(), static_cast<C>(scale));
    });
  };
  if constexpr (std::is_same_v<T, C>)
    parallel_for(run.n, p.cost, part);
  else
    parallel_for((run.n + kPiece - 1) / kPiece, 6 * kPiece,
                 [&](int64_t begin, int64_t end) { part(begin * kPiece, std::min(end * kPiece, run.n)); });
}

}  // namespace

void run_optimizer(const OptimizerPasses& passes, const OptimizerRun& run, const double* factors,
                   double gradient_scale) {
  switch (run.dtype) {
    case DType::kFloat:
      return run_as<float, float>(passes, run, factors, gradient_scale);
    case DType::kDouble:
      if constexpr (kHasKernels<double>) run_as<double, double>(passes, run, factors, gradient_scale);
      return;
    // States of 16-bit floats are float: squares of their gradients would overflow or vanish.
    case DType::kFloat16:
      if constexpr (kHasKernels<Float16>) run_as<Float16, float>(passes, run, factors, gradient_scale);
      return;
    case DType::kBFloat16:
      if constexpr (kHasKernels<BFloat16>) run_as<BFloat16, float>(passes, run, factors, gradient_scale);
      return;
    default:
      return;  // rejected before
  }
}

}  // namespace ortrain
