#include "session/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "op/operator.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/convert.h"

namespace ortrain {

Optimizer::Optimizer(const Model& model) {
  std::string problems;
  int optimizers = 0;
  for (const Node& node : model.graph.nodes) {
    if (node.domain == kMicrosoft && node.op_type == "AdamWOptimizer") {
      ++optimizers;
      kind_ = Kind::kAdamW;
      adamw_ = AdamWAttributes(node);
      if (const std::string wrong = adamw_.problem(); !wrong.empty())
        problems += concat("\n  ", node.label(), ": ", wrong);
    } else if (node.domain == kMicrosoft && node.op_type == "SGDOptimizerV2") {
      ++optimizers;
      kind_ = Kind::kSgd;
    } else if (node.domain == kMicrosoft && node.op_type == "InplaceClipGradNorm") {
      max_norm_ = node.float_or("max_norm", 1.0f);
      if (const std::string norm = node.string_or("norm_type", "fro"); norm != "fro")
        problems += concat("\n  ", node.label(), ": expected norm_type 'fro', found '", norm, "'");
    } else {
      problems +=
          concat("\n  ", node.label(),
                 ": expected AdamWOptimizer, SGDOptimizerV2 or InplaceClipGradNorm of domain com.microsoft");
    }
  }
  require(problems.empty(), ErrorCode::kNotImplemented,
          "the optimizer model has nodes that cannot be run:", problems);
  require(optimizers == 1, ErrorCode::kInvalidGraph,
          "the optimizer model must have one optimizer node, found ", optimizers);
}

namespace {

// Calls f(run): once for all trainable parameters if they have one type, which is not a 16-bit float (the
// gaps between them are zero and stay zero); else for each of them.
template <typename F>
void for_runs(const CheckpointState& state, F&& f) {
  const auto moment = [&](const std::vector<Tensor>& moments, size_t m) {
    return m < moments.size() ? moments[m].raw() : nullptr;
  };
  const std::vector<Parameter>& parameters = state.parameters();
  const DType dtype = parameters.front().data.dtype();
  const bool alike = size_of(dtype) >= 4 &&
                     std::all_of(parameters.begin(), parameters.end(),
                                 [&](const Parameter& p) { return !p.trainable || p.data.dtype() == dtype; });
  if (alike) {
    f(OptimizerRun{dtype, state.data_arena().raw(), state.gradient_arena().raw(),
                   moment(state.moment_arenas(), 0), moment(state.moment_arenas(), 1),
                   static_cast<int64_t>(state.data_arena().bytes() / size_of(dtype))});
    return;
  }
  for (const Parameter& p : parameters)
    if (p.trainable)
      f(OptimizerRun{p.data.dtype(), p.data.raw(), p.gradient.raw(), moment(p.moments, 0),
                     moment(p.moments, 1), p.data.size()});
}

}  // namespace

double gradient_norm(const CheckpointState& state) {
  double squares = 0;
  for_runs(state, [&](const OptimizerRun& run) { squares += sum_of_squares(run); });
  return std::sqrt(squares);
}

bool Optimizer::apply(CheckpointState& state, float learning_rate, int64_t step, bool finite_only) const {
  double squares = 0;
  for_runs(state, [&](const OptimizerRun& run) {
    require(is_floating(run.dtype), ErrorCode::kNotImplemented, "optimizer step: parameters of type ",
            to_string(run.dtype), " are not supported");
    if (max_norm_) squares += sum_of_squares(run);
  });
  // The norm, where it is needed, saves looking at the gradients again.
  if (finite_only && !(max_norm_ && std::isfinite(squares))) {
    bool finite = true;
    for_runs(state, [&](const OptimizerRun& run) { finite = finite && all_finite(run); });
    if (!finite) return false;
  }
  const double scale = max_norm_ ? clip_factor(squares, *max_norm_) : 1.0;
  if (kind_ == Kind::kSgd) {
    for_runs(state, [&](const OptimizerRun& run) { sgd(run, static_cast<double>(learning_rate) * scale); });
    return true;
  }
  const AdamWFactors<double> f = adamw_.factors(learning_rate, step, scale);
  for_runs(state, [&](const OptimizerRun& run) { adamw(run, f); });
  return true;
}

namespace {

template <typename T>
std::pair<int64_t, int64_t> nans_and_infinities(const Tensor& gradient) {
  std::pair<int64_t, int64_t> found;
  for (const T element : gradient.elements<T>()) {
    const auto value = cast_number<double>(element);
    found.first += std::isnan(value);
    found.second += std::isinf(value);
  }
  return found;
}

}  // namespace

std::string nonfinite_gradients(const CheckpointState& state) {
  constexpr size_t kMostNames = 10;
  std::vector<std::string> found;
  size_t trainable = 0;
  for (const Parameter& p : state.parameters()) {
    if (!p.trainable) continue;
    ++trainable;
    std::pair<int64_t, int64_t> counts;
    visit_types<float, double, Float16, BFloat16>(
        p.gradient.dtype(), [&](auto zero) { counts = nans_and_infinities<decltype(zero)>(p.gradient); });
    const auto [nans, infinities] = counts;
    if (nans + infinities == 0) continue;
    found.push_back(concat("\n  \"", p.name, "\": of ", p.gradient.size(), " elements ", nans,
                           " are NaN and ", infinities, " infinite"));
  }
  std::string text =
      concat("the gradients of ", found.size(), " of ", trainable, " parameters are not finite:");
  for (size_t i = 0; i < std::min(found.size(), kMostNames); ++i) text += found[i];
  if (found.size() > kMostNames) text += concat("\n  and ", found.size() - kMostNames, " more");
  return text;
}

}  // namespace ortrain
