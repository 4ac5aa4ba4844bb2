#include "session/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "op/operator.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/convert.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

// The group of a model that names none; checkpoints have used the name for all parameters.
constexpr const char* kOnlyGroup = "group0";
constexpr const char* kFactor = "learning_rate_factor";
constexpr size_t kNone = SIZE_MAX;

std::vector<std::string> names_in(const Node& node, const std::string& attribute) {
  const auto found = node.attributes.find(attribute);
  if (found == node.attributes.end()) return {};
  const auto* names = std::get_if<std::vector<std::string>>(&found->second);
  require(names != nullptr && !names->empty(), ErrorCode::kInvalidGraph, node.label(), ": the attribute '",
          attribute, "' should be a list of names");
  return *names;
}

std::vector<std::string> names_of(const std::vector<ParameterGroup>& groups) {
  std::vector<std::string> names;
  for (const ParameterGroup& group : groups) names.push_back(group.name);
  return names;
}

}  // namespace

Optimizer::Optimizer(const Model& model) {
  std::string problems;
  const char* first = nullptr;
  for (const Node& node : model.graph.nodes) {
    if (node.domain == kMicrosoft && (node.op_type == "AdamWOptimizer" || node.op_type == "SGDOptimizerV2")) {
      kind_ = node.op_type == "AdamWOptimizer" ? Kind::kAdamW : Kind::kSgd;
      if (first == nullptr) first = type();
      if (std::string_view(first) != type())
        problems += concat("\n  ", node.label(), ": expected ", first, " as in the group before");
      add_group(node, problems);
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
  require(!groups_.empty(), ErrorCode::kInvalidGraph,
          "the optimizer model must have an optimizer node, found none");
  const auto takes_the_rest = [](const ParameterGroup& group) { return group.parameters.empty(); };
  const auto rest = std::count_if(groups_.begin(), groups_.end(), takes_the_rest);
  require(
      rest <= 1, ErrorCode::kInvalidGraph, "the optimizer model has ", rest,
      " optimizer nodes without the attribute 'parameters', which would update the same parameters; expected "
      "at most one");
}

void Optimizer::add_group(const Node& node, std::string& problems) {
  ParameterGroup group;
  group.name = node.string_or("group", kOnlyGroup);
  group.parameters = names_in(node, "parameters");
  group.learning_rate_factor = node.float_or(kFactor, 1);
  if (kind_ == Kind::kAdamW) group.adamw = AdamWAttributes(node);
  if (const std::string wrong = group.adamw.problem(); !wrong.empty())
    problems += concat("\n  ", node.label(), ": ", wrong);
  for (const ParameterGroup& other : groups_)
    if (other.name == group.name)
      problems += concat("\n  ", node.label(), ": there is another parameter group \"", group.name, "\"");
  groups_.push_back(std::move(group));
}

void Optimizer::take(const CheckpointState& state) {
  const std::vector<Parameter>& parameters = state.parameters();
  size_t rest = kNone;
  std::unordered_map<std::string_view, size_t> named;
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].parameters.empty()) rest = g;
    for (const std::string& name : groups_[g].parameters) {
      const auto [place, is_new] = named.emplace(name, g);
      require(is_new, ErrorCode::kInvalidArgument, "the optimizer model names the parameter \"", name,
              "\" in its parameter groups \"", groups_[place->second].name, "\" and \"", groups_[g].name,
              "\"");
      require(state.has_parameter(name) && state.parameter(name).trainable, ErrorCode::kInvalidArgument,
              "the optimizer model's parameter group \"", groups_[g].name, "\" names \"", name,
              "\", which is not a trainable parameter of the checkpoint");
    }
  }
  group_of_.assign(parameters.size(), kNone);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].trainable) continue;
    const auto found = named.find(parameters[i].name);
    group_of_[i] = found != named.end() ? found->second : rest;
    require(group_of_[i] != kNone, ErrorCode::kInvalidArgument, "the trainable parameter \"",
            parameters[i].name, "\" is in no parameter group of the optimizer model");
  }
  for (const auto& [group, settings] : state.optimizer().group_settings)
    for (const auto& [key, value] : settings) try {
        set_attribute(group, key, value);
      } catch (const Error& e) {
        fail(e.code(), "the checkpoint's optimizer state does not fit the optimizer model: ", e.message(),
             ". To use another optimizer model, save the checkpoint without optimizer state");
      }
}

const ParameterGroup& Optimizer::group(const std::string& name) const {
  for (const ParameterGroup& group : groups_)
    if (group.name == name) return group;
  fail(ErrorCode::kInvalidArgument, "the optimizer has no parameter group \"", name, "\"; its groups are ",
       quoted_list(names_of(groups_)));
}

const ParameterGroup* Optimizer::group_of(size_t parameter) const {
  return group_of_[parameter] == kNone ? nullptr : &groups_[group_of_[parameter]];
}

std::vector<size_t> Optimizer::parameters_of(const std::string& name) const {
  const auto wanted = static_cast<size_t>(&group(name) - groups_.data());
  std::vector<size_t> indices;
  for (size_t i = 0; i < group_of_.size(); ++i)
    if (group_of_[i] == wanted) indices.push_back(i);
  return indices;
}

namespace {

// The place of an attribute in a group.
template <typename Group>
auto* place_of(Group& group, bool is_adamw, const std::string& attribute) {
  if (attribute == kFactor) return &group.learning_rate_factor;
  if (is_adamw) {
    if (attribute == "alpha") return &group.adamw.alpha;
    if (attribute == "beta") return &group.adamw.beta;
    if (attribute == "epsilon") return &group.adamw.epsilon;
    if (attribute == "weight_decay") return &group.adamw.weight_decay;
  }
  fail(ErrorCode::kInvalidArgument, "a parameter group of ", is_adamw ? "AdamW" : "SGD",
       " has no attribute \"", attribute, "\"; it has learning_rate, learning_rate_factor",
       is_adamw ? ", alpha, beta, epsilon and weight_decay" : "");
}

}  // namespace

float Optimizer::attribute(const std::string& name, const std::string& attribute) const {
  return *place_of(group(name), kind_ == Kind::kAdamW, attribute);
}

void Optimizer::set_attribute(const std::string& name, const std::string& attribute, float value) {
  ParameterGroup& target = groups_[static_cast<size_t>(&group(name) - groups_.data())];
  float* place = place_of(target, kind_ == Kind::kAdamW, attribute);
  const bool is_moment_decay = attribute == "alpha" || attribute == "beta";
  const bool fits = std::isfinite(value) && (!is_moment_decay || (value >= 0 && value < 1)) &&
                    (attribute != "epsilon" || value >= 0);
  require(fits, ErrorCode::kInvalidArgument, "parameter group \"", name, "\": ", attribute, " should be ",
          is_moment_decay          ? "at least 0 and less than 1"
          : attribute == "epsilon" ? "a finite number of at least 0"
                                   : "a finite number",
          ", found ", value);
  *place = value;
}

namespace {

std::byte* moment_of(const std::vector<Tensor>& moments, size_t m) {
  return m < moments.size() ? moments[m].raw() : nullptr;
}

OptimizerRun run_of(const Parameter& p, int64_t n) {
  return {
      p.data.dtype(), p.data.raw(), p.gradient.raw(), moment_of(p.moments, 0), moment_of(p.moments, 1), n};
}

// Whether the trainable parameters have one type, which is not a 16-bit float: their arenas then have the
// same layout, and the gaps in them are zero and stay zero.
bool are_alike(const std::vector<Parameter>& parameters) {
  const DType dtype = parameters.front().data.dtype();
  return size_of(dtype) >= 4 && std::all_of(parameters.begin(), parameters.end(), [&](const Parameter& p) {
           return !p.trainable || p.data.dtype() == dtype;
         });
}

// Calls f(run): once for all trainable parameters if they are alike; else for each of them.
template <typename F>
void for_runs(const CheckpointState& state, F&& f) {
  const std::vector<Parameter>& parameters = state.parameters();
  if (are_alike(parameters)) {
    const DType dtype = parameters.front().data.dtype();
    f(OptimizerRun{dtype, state.data_arena().raw(), state.gradient_arena().raw(),
                   moment_of(state.moment_arenas(), 0), moment_of(state.moment_arenas(), 1),
                   static_cast<int64_t>(state.data_arena().bytes() / size_of(dtype))});
    return;
  }
  for (const Parameter& p : parameters)
    if (p.trainable) f(run_of(p, p.data.size()));
}

// Calls f(run) for the trainable parameters that are `wanted`, given by their indices: once for those that
// follow each other if all are alike; else for each of them.
template <typename Wanted, typename F>
void for_runs_of(const CheckpointState& state, Wanted&& wanted, F&& f) {
  const std::vector<Parameter>& parameters = state.parameters();
  const bool alike = are_alike(parameters);
  const auto is_part = [&](size_t i) {
    return i < parameters.size() && parameters[i].trainable && wanted(i);
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_part(i)) continue;
    const size_t first = i;
    while (alike && is_part(i + 1)) ++i;
    const Tensor& last = parameters[i].data;
    const auto before = static_cast<size_t>(last.raw() - parameters[first].data.raw());
    f(run_of(parameters[first], static_cast<int64_t>(before / size_of(last.dtype())) + last.size()));
  }
}

}  // namespace

double gradient_norm(const CheckpointState& state) {
  double squares = 0;
  for_runs(state, [&](const OptimizerRun& run) { squares += sum_of_squares(run); });
  return std::sqrt(squares);
}

bool Optimizer::apply(CheckpointState& state, float learning_rate, int64_t step,
                      const GradientBounds* bounds) const {
  double squares = 0;
  for_runs(state, [&](const OptimizerRun& run) {
    require(is_floating(run.dtype), ErrorCode::kNotImplemented, "optimizer step: parameters of type ",
            to_string(run.dtype), " are not supported");
    if (max_norm_) squares += sum_of_squares(run);
  });
  // The norm, where it is needed, saves looking at the gradients again.
  if (bounds && !(max_norm_ && std::isfinite(squares))) {
    bool finite = true;
    for_runs_of(
        state, [&](size_t i) { return !bounds->is_finite(i); },
        [&](const OptimizerRun& run) { finite = finite && all_finite(run); });
    if (!finite) return false;
  }
  const double scale = max_norm_ ? clip_factor(squares, *max_norm_) : 1.0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const ParameterGroup& group = groups_[g];
    const double rate = static_cast<double>(learning_rate) * static_cast<double>(group.learning_rate_factor);
    const AdamWFactors<double> f = group.adamw.factors(rate, step, scale);
    const auto update = [&](const OptimizerRun& run) {
      if (kind_ == Kind::kSgd)
        sgd(run, rate * scale);
      else
        adamw(run, f);
    };
    if (groups_.size() == 1)
      for_runs(state, update);
    else
      for_runs_of(
          state, [&](size_t i) { return group_of_[i] == g; }, update);
  }
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
