#include "session/gradient_clipping.h"

#include <algorithm>
#include <cmath>

#include "op/operator.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

// Calls f(x) for the gradients of a run, which it returns changed.
template <typename F>
void for_gradients(const OptimizerRun& run, F&& f) {
  visit_types<float, double, Float16, BFloat16>(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* g = reinterpret_cast<T*>(run.gradients);
    parallel_for(run.n, 2, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        for (int64_t i = begin; i < end; ++i) g[i] = f(g[i]);
      } else {
        for (int64_t i = begin; i < end; ++i) g[i] = cast_number<T>(f(cast_number<float>(g[i])));
      }
    });
  });
}

}  // namespace

bool GradientClipping::read(const Node& node, std::string& problems) {
  const auto take = [&](std::optional<float>& limit, const char* attribute) {
    if (limit) problems += concat("\n  ", node.label(), ": another node already sets a limit of this kind");
    limit = node.float_or(attribute, 1.0f);
  };
  if (node.domain == kMicrosoft && node.op_type == "InplaceClipGradNorm") {
    take(norm, "max_norm");
    if (const std::string type = node.string_or("norm_type", "fro"); type != "fro")
      problems += concat("\n  ", node.label(), ": expected norm_type 'fro', found '", type, "'");
    return true;
  }
  if (node.domain != "ortrain" || node.op_type != "ClipGradients") return false;
  const std::string type = node.string_or("type", "");
  std::optional<float>* limit = type == "value"        ? &value
                                : type == "adaptive"   ? &adaptive
                                : type == "group_norm" ? &group_norm
                                                       : nullptr;
  if (limit == nullptr) {
    problems += concat("\n  ", node.label(), ": expected type 'value', 'adaptive' or 'group_norm', found '",
                       type, "'");
    return true;
  }
  take(*limit, "limit");
  epsilon = node.float_or("epsilon", epsilon);
  if (!(**limit > 0) || !(epsilon > 0))
    problems += concat("\n  ", node.label(), ": expected limit and epsilon above 0, found ", **limit, " and ",
                       epsilon);
  return true;
}

void GradientClipping::change(const OptimizerRun& run) const {
  if (value)
    for_gradients(run, [limit = *value](auto g) {
      return std::min<decltype(g)>(std::max<decltype(g)>(g, -limit), limit);
    });
  if (!adaptive) return;
  OptimizerRun weights = run;
  weights.gradients = run.weights;
  const double most = static_cast<double>(*adaptive) *
                      std::max(std::sqrt(sum_of_squares(weights)), static_cast<double>(epsilon));
  const double norm = std::sqrt(sum_of_squares(run));
  if (norm > most)
    for_gradients(run, [factor = most / norm](auto g) { return g * static_cast<decltype(g)>(factor); });
}

}  // namespace ortrain
