// Compiled for size: the loops over elements are functions of the backend (CMakeLists.txt).
#include "session/optimizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backend/cpu/optimizer/formula.h"
#include "backend/cpu/optimizer/tensor_rule.h"
#include "backend/cpu/optimizer/weight_average.h"
#include "op/left_out.h"
#include "op/operator.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/convert.h"
#include "runtime/text.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

// The group of a model that names none; checkpoints have used the name for all parameters.
constexpr const char* kOnlyGroup = "group0";
constexpr const char* kFactor = "learning_rate_factor";
constexpr const char* kOwnDomain = "ortrain";
// The name of the state with the averages, and of the group of scalars with their count.
constexpr const char* kAverage = "weight_average";
constexpr const char* kAveraged = "averaged_steps";
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

// The optimizer that a node describes; null for other nodes and for an unknown type.
const OptimizerRule* rule_of(const Node& node) {
  if (node.domain == kMicrosoft) return optimizer_of_node(node.op_type);
  if (node.domain == kOwnDomain && node.op_type == "Optimizer")
    return find_optimizer(node.string_or("type", ""));
  return nullptr;
}

std::string known_types() {
  std::string text;
  for (const OptimizerRule* rule : all_optimizers()) text += concat(text.empty() ? "" : ", ", rule->name);
  return text;
}

// Whether a setting accepts a value.
bool fits(const OptimizerSetting& setting, float value) {
  return std::isfinite(value) && value >= setting.least && value < setting.below;
}

std::string range_of(const OptimizerSetting& setting) {
  if (std::isfinite(setting.below))
    return concat("at least ", setting.least, " and less than ", setting.below);
  if (std::isfinite(setting.least)) return concat("a finite number of at least ", setting.least);
  return "a finite number";
}

}  // namespace

Optimizer::Optimizer(const Model& model) {
  std::string problems;
  for (const Node& node : model.graph.nodes) {
    if (const OptimizerRule* rule = rule_of(node)) {
      if (rule_ == nullptr) rule_ = rule;
      if (rule_ != rule)
        problems += concat("\n  ", node.label(), ": expected ", type(), " as in the group before");
      else
        add_group(node, *rule, problems);
    } else if (clipping_.read(node, problems)) {
      continue;
    } else if (node.domain == kOwnDomain && node.op_type == "WeightAverage") {
      read_average(node, problems);
    } else if (node.domain == kOwnDomain && node.op_type == "Optimizer") {
      problems += concat("\n  ", node.label(), ": its type is '", node.string_or("type", ""),
                         "', expected one of ", known_types(), left_out_hint());
    } else {
      problems += concat("\n  ", node.label(),
                         ": expected AdamWOptimizer, SGDOptimizerV2 or InplaceClipGradNorm of domain "
                         "com.microsoft, or Optimizer, ClipGradients or WeightAverage of domain ortrain",
                         left_out_hint());
    }
  }
  require(problems.empty(), ErrorCode::kNotImplemented,
          "the optimizer model has nodes that cannot be run:", problems);
  require(!groups_.empty(), ErrorCode::kInvalidGraph,
          "the optimizer model must have an optimizer node, found none");
  const auto takes_the_rest = [](const ParameterGroup& group) { return group.parameters.empty(); };
  const auto rest = std::count_if(groups_.begin(), groups_.end(), takes_the_rest);
  require(rest <= 1, ErrorCode::kInvalidGraph, "the optimizer model has ", counted(rest, "optimizer node"),
          " without the attribute 'parameters', which would update the same parameters; expected "
          "at most one");
  choose_passes();
}

void Optimizer::read_average(const Node& node, std::string& problems) {
  if (average_) problems += concat("\n  ", node.label(), ": another node already averages the weights");
  average_ = WeightAverage{node.float_or("decay", 0.999f), node.int_or("warmup", 0) != 0};
  if (!(average_->decay >= 0 && average_->decay < 1))
    problems +=
        concat("\n  ", node.label(), ": decay should be at least 0 and less than 1, found ", average_->decay);
}

void Optimizer::add_group(const Node& node, const OptimizerRule& rule, std::string& problems) {
  ParameterGroup group;
  group.name = node.string_or("group", kOnlyGroup);
  group.parameters = names_in(node, "parameters");
  group.learning_rate_factor = node.float_or(kFactor, 1);
  group.values = rule.defaults();
  for (size_t i = 0; i < rule.settings.size(); ++i) {
    const OptimizerSetting& setting = rule.settings[i];
    float& value = group.values.settings[i];
    value = setting.is_flag ? static_cast<float>(node.int_or(setting.name, static_cast<int64_t>(value)))
                            : node.float_or(setting.name, value);
    // Models for onnxruntime may have any value in operators that onnxruntime runs too.
    if (node.domain == kOwnDomain && !fits(setting, value))
      problems += concat("\n  ", node.label(), ": ", setting.name, " should be ", range_of(setting),
                         ", found ", value);
  }
  if (rule.problem != nullptr)
    if (const std::string wrong = rule.problem({rule, group.values, 1, 1, 1}); !wrong.empty())
      problems += concat("\n  ", node.label(), ": ", wrong);
  for (const ParameterGroup& other : groups_)
    if (other.name == group.name)
      problems += concat("\n  ", node.label(), ": there is another parameter group \"", group.name, "\"");
  groups_.push_back(std::move(group));
}

void Optimizer::choose_passes() {
  size_t index = 0, bit = 0;
  for (const StateDeclaration& state : rule_->states) {
    bool needed = true;
    if (state.when != nullptr) {
      const size_t setting = rule_->setting(state.when);
      needed = std::any_of(groups_.begin(), groups_.end(),
                           [&](const ParameterGroup& group) { return group.values.settings[setting] != 0; });
      index |= size_t{needed} << bit++;
    }
    if (!needed) continue;
    if (state.is_evaluated) evaluated_ = state_names_.size();
    state_names_.push_back(state.name);
  }
  if (!takes_tensors()) passes_ = &rule_->passes.at(index);
  if (average_) state_names_.emplace_back(kAverage);
}

Formula Optimizer::formula(const ParameterGroup& group) const {
  if (takes_tensors()) return {};
  const auto factor = static_cast<double>(group.learning_rate_factor);
  return formula_of(*rule_, *passes_, group.values, factor, state_names_);
}

std::optional<float> Optimizer::norm_limit() const {
  require(!average_ && !clipping_.changes_gradients() && !clipping_.group_norm, ErrorCode::kNotImplemented,
          "the optimizer model has ClipGradients or WeightAverage nodes of the domain ortrain, which have no "
          "standard form");
  return clipping_.norm;
}

void Optimizer::take(CheckpointState& state) {
  const std::vector<Parameter>& parameters = state.parameters();
  const std::vector<std::string>& kept = state.optimizer().state_names;
  require(kept.empty() || kept == state_names_, ErrorCode::kInvalidArgument,
          "the checkpoint's optimizer state consists of ", quoted_list(kept), ", but the optimizer ", type(),
          " keeps ", state_names_.empty() ? "none" : quoted_list(state_names_),
          "; it was created with another optimizer. To switch, save it without optimizer state");
  for (const Parameter& p : parameters)
    require(!averages() || !p.trainable || size_of(p.data.dtype()) >= 4, ErrorCode::kNotImplemented,
            "the optimizer averages weights, which parameters of 16 bits do not support; \"", p.name,
            "\" is ", to_string(p.data.dtype()));
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
  for (ParameterGroup& group : groups_) {
    group.kept.clear();
    for (size_t i = 0; i < rule_->scalars.size(); ++i) {
      auto& scalars = state.optimizer().group_scalars[group.name];
      const auto at = scalars.try_emplace(rule_->scalars[i].name, rule_->scalars[i].value).first;
      group.kept.push_back(&at->second);
      group.values.scalars[i] = at->second;
    }
  }
}

const ParameterGroup& Optimizer::group(const std::string& name) const {
  for (const ParameterGroup& group : groups_)
    if (group.name == name) return group;
  fail(ErrorCode::kInvalidArgument, "the optimizer has no parameter group \"", name, "\"; its groups are ",
       quoted_list(names_of(groups_)));
}

Tensor Optimizer::state_form(size_t parameter, const Parameter& p, size_t k) const {
  const DType dtype = wide_of(p.data.dtype());
  if (!takes_tensors() || k >= rule_->states.size()) return Tensor(dtype, p.data.shape(), nullptr);
  OptimizerValues values = groups_[group_of_[parameter]].values;
  return rule_->of_tensor->state({*rule_, values, 0, 1, 1}, dtype, p.data.shape(), k);
}

void Optimizer::make_states(CheckpointState& state) const {
  state.make_moments(state_names_, [&](const Parameter& p, size_t k) {
    return state_form(static_cast<size_t>(&p - state.parameters().data()), p, k);
  });
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

float Optimizer::attribute(const std::string& name, const std::string& attribute) const {
  const ParameterGroup& found = group(name);
  if (attribute == kFactor) return found.learning_rate_factor;
  const size_t setting = rule_->setting(attribute);
  if (setting == SIZE_MAX || rule_->settings[setting].is_flag) {
    std::string known;
    for (const OptimizerSetting& s : rule_->settings)
      if (!s.is_flag) known += concat(", ", s.name);
    fail(ErrorCode::kInvalidArgument, "a parameter group of ", type(), " has no attribute \"", attribute,
         "\"; it has learning_rate, learning_rate_factor", known);
  }
  return found.values.settings[setting];
}

void Optimizer::set_attribute(const std::string& name, const std::string& attribute, float value) {
  this->attribute(name, attribute);  // rejects unknown names
  ParameterGroup& target = groups_[static_cast<size_t>(&group(name) - groups_.data())];
  const size_t setting = attribute == kFactor ? SIZE_MAX : rule_->setting(attribute);
  static const OptimizerSetting any{kFactor, 1, ""};
  const OptimizerSetting& declared = setting == SIZE_MAX ? any : rule_->settings[setting];
  require(fits(declared, value), ErrorCode::kInvalidArgument, "parameter group \"", name, "\": ", attribute,
          " should be ", range_of(declared), ", found ", value);
  for (const StateDeclaration& state : rule_->states)
    require(state.when == nullptr || attribute != state.when || value == 0 ||
                std::find(state_names_.begin(), state_names_.end(), state.name) != state_names_.end(),
            ErrorCode::kInvalidArgument, "parameter group \"", name, "\": ", attribute,
            " should be 0, because the optimizer model has none and so the session keeps no ", state.name,
            ", found ", value);
  (setting == SIZE_MAX ? target.learning_rate_factor : target.values.settings[setting]) = value;
}

namespace {

std::array<std::byte*, kMostStates> addresses(const std::vector<Tensor>& moments) {
  std::array<std::byte*, kMostStates> all{};
  for (size_t m = 0; m < std::min(moments.size(), kMostStates); ++m) all[m] = moments[m].raw();
  return all;
}

OptimizerRun run_of(const Parameter& p, int64_t n) {
  return {p.data.dtype(), p.data.raw(), p.gradient.raw(), addresses(p.moments), n};
}

// Whether the states of a table have its shape and type, so that its rows are rows of each of them.
bool has_rows(const Parameter& p) {
  return std::all_of(p.moments.begin(), p.moments.end(), [&](const Tensor& state) {
    return state.dtype() == p.data.dtype() && state.size() == p.data.size();
  });
}

// The `n` elements of a parameter from `first` on.
OptimizerRun part_of(const Parameter& p, int64_t first, int64_t n) {
  OptimizerRun run = run_of(p, n);
  const auto offset = static_cast<size_t>(first) * size_of(run.dtype);
  run.weights += offset;
  run.gradients += offset;
  for (std::byte*& state : run.states)
    if (state != nullptr) state += offset;
  return run;
}

// Calls f(run), in several threads, for neighbouring rows of a table that are in the set. `cost` is that of
// an element.
template <typename F>
void for_rows(const Parameter& p, const RowSet& rows, int64_t cost, F&& f) {
  const int64_t row = p.data.size() / p.data.shape()[0];
  const int64_t words = rows.words();
  parallel_for(words, rows.count() * row * cost / words, [&](int64_t from, int64_t to) {
    rows.each_run(from, to,
                  [&](int64_t first, int64_t end) { f(part_of(p, first * row, (end - first) * row)); });
  });
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
                   addresses(state.moment_arenas()),
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

// Calls f(run) for each trainable parameter that is `wanted`.
template <typename Wanted, typename F>
void for_each_of(const CheckpointState& state, Wanted&& wanted, F&& f) {
  const std::vector<Parameter>& parameters = state.parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].trainable && wanted(i)) f(run_of(parameters[i], parameters[i].data.size()));
}

// Calls f(begin, end) for the gradients of a run that may be other than zero, in ascending order.
template <typename F>
void for_nonzero(const CheckpointState& state, const GradientRows& rows, const OptimizerRun& run, F&& f) {
  int64_t at = 0;
  for (size_t i = 0; i < state.parameters().size(); ++i) {
    const Parameter& p = state.parameters()[i];
    const std::optional<RowSet> touched = rows.of(i);
    if (!touched || p.gradient.raw() < run.gradients) continue;
    const auto start =
        static_cast<int64_t>(static_cast<size_t>(p.gradient.raw() - run.gradients) / size_of(run.dtype));
    if (start >= run.n) continue;
    const int64_t row = p.data.size() / p.data.shape()[0];
    f(at, start);
    touched->each_run(0, touched->words(),
                      [&](int64_t first, int64_t end) { f(start + first * row, start + end * row); });
    at = start + p.data.size();
  }
  f(at, run.n);
}

double squares_of(const CheckpointState& state, const GradientRows& rows) {
  double squares = 0;
  for_runs(state, [&](const OptimizerRun& run) {
    const bool floating = visit_floating(run.dtype, [&](auto zero) {
      SumOfSquares sum(reinterpret_cast<const decltype(zero)*>(run.gradients), run.n);
      for_nonzero(state, rows, run, [&](int64_t begin, int64_t end) { sum.add(begin, end); });
      squares += sum.total();
    });
    if (!floating) squares += sum_of_squares(run);
  });
  return squares;
}

// Whether the gradients without a known bound are finite.
bool are_finite(const CheckpointState& state, const GradientBounds& bounds, const GradientRows& rows) {
  std::atomic<bool> finite{true};
  const auto look = [&](const OptimizerRun& run) {
    if (finite && !all_finite(run)) finite = false;
  };
  for_runs_of(
      state, [&](size_t i) { return !bounds.is_finite(i) && !rows.of(i); }, look);
  for (size_t i = 0; i < state.parameters().size(); ++i)
    if (const auto touched = rows.of(i); touched && !bounds.is_finite(i))
      for_rows(state.parameters()[i], *touched, 1, look);
  return finite;
}

// Whether a step with these numbers changes neither weights nor states of elements whose gradient is zero.
// The function runs the update on elements of all magnitudes: weights that decay, or that momentum moves,
// then change.
bool leaves_zeros(const OptimizerPasses& passes, DType dtype, const double* factors, double scale) {
  bool same = true;
  visit_floating(dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr size_t kCount = 36;
    constexpr T kMagnitudes[] = {0, 1, T(0x1p-40), T(0x1p40), T(-1), T(-0x1p20)};
    std::array<std::array<T, kCount>, kMostStates + 2> given{};  // weights, gradients, states
    for (size_t i = 0; i < kCount; ++i) {
      given[0][i] = kMagnitudes[i % 6];
      for (size_t k = 0; k < passes.states; ++k) given[k + 2][i] = std::abs(kMagnitudes[i / 6]);
    }
    auto arrays = given;
    const auto at = [&](size_t k) { return reinterpret_cast<std::byte*>(arrays[k].data()); };
    OptimizerRun run{dtype, at(0), at(1), {}, static_cast<int64_t>(kCount)};
    for (size_t k = 0; k < passes.states; ++k) run.states[k] = at(k + 2);
    run_optimizer(passes, run, factors, scale);
    same = std::memcmp(arrays.data(), given.data(), sizeof given) == 0;
  });
  return same;
}

}  // namespace

double gradient_norm(const CheckpointState& state, const GradientRows& rows) {
  return std::sqrt(squares_of(state, rows));
}

bool Optimizer::apply(CheckpointState& state, float learning_rate, int64_t step, const GradientBounds* bounds,
                      const GradientRows& rows, bool lazy) {
  for_runs(state, [&](const OptimizerRun& run) {
    require(is_floating(run.dtype), ErrorCode::kNotImplemented, "optimizer step: parameters of type ",
            to_string(run.dtype), " are not supported");
  });
  double squares = clips() ? squares_of(state, rows) : 0;
  // If the norm is known, it shows whether the gradients are finite, so they need not be read again.
  if (bounds && !(clips() && std::isfinite(squares)) && !are_finite(state, *bounds, rows)) return false;
  if (clipping_.changes_gradients()) {
    for_each_of(
        state, [](size_t) { return true; }, [&](const OptimizerRun& run) { clipping_.change(run); });
    if (clipping_.norm) squares = squares_of(state, rows);
  }
  const double scale = clipping_.norm ? clip_factor(squares, *clipping_.norm) : 1.0;
  for (size_t g = 0; g < groups_.size(); ++g) update_group(g, state, learning_rate, step, scale, rows, lazy);
  if (average_) update_average(state);
  return true;
}

void Optimizer::update_group(size_t g, const CheckpointState& state, float learning_rate, int64_t step,
                             double scale, const GradientRows& rows, bool lazy) {
  ParameterGroup& group = groups_[g];
  const double rate = static_cast<double>(learning_rate) * static_cast<double>(group.learning_rate_factor);
  const auto is_of_group = [&](size_t i) { return group_of_[i] == g; };
  if (clipping_.group_norm) {
    double squares = 0;
    for_runs_of(state, is_of_group, [&](const OptimizerRun& run) { squares += sum_of_squares(run); });
    scale *= clip_factor(squares * scale * scale, *clipping_.group_norm);
  }
  const OptimizerStep numbers{*rule_, group.values, rate, static_cast<double>(step), scale};
  if (takes_tensors()) {
    for (size_t i = 0; i < group_of_.size(); ++i)
      if (const Parameter& p = state.parameters()[i]; is_of_group(i))
        run_tensor_rule(*rule_->of_tensor, numbers, p.data, p.gradient, p.moments, work_);
    return;
  }
  double factors[kMostFactors];
  passes_->prepare(numbers, factors);
  const auto update = [&](const OptimizerRun& run) { run_optimizer(*passes_, run, factors, scale); };
  const auto by_rows = [&](size_t i) {
    return passes_->sums == 0 && !evaluated_ && is_of_group(i) && rows.of(i) &&
           has_rows(state.parameters()[i]) &&
           (lazy || leaves_zeros(*passes_, state.parameters()[i].data.dtype(), factors, scale));
  };
  std::vector<size_t>& tables = tables_;  // keeps its memory
  tables.clear();
  for (size_t i = 0; i < group_of_.size(); ++i)
    if (by_rows(i)) tables.push_back(i);
  for (const size_t i : tables) for_rows(state.parameters()[i], *rows.of(i), passes_->cost, update);
  if (passes_->sums > 0)
    for_each_of(state, is_of_group, update);
  else if (groups_.size() == 1 && tables.empty())
    for_runs(state, update);
  else
    for_runs_of(
        state,
        [&](size_t i) {
          return is_of_group(i) && std::find(tables.begin(), tables.end(), i) == tables.end();
        },
        update);
  for (size_t i = 0; i < group.kept.size(); ++i) *group.kept[i] = group.values.scalars[i];
}

std::optional<size_t> Optimizer::average_of(const CheckpointState& state) const {
  if (!average_) return state.optimizer().step > 0 ? evaluated_ : std::nullopt;
  const auto& scalars = state.optimizer().group_scalars;
  const auto found = scalars.find(kAverage);
  if (found == scalars.end()) return std::nullopt;
  const auto averaged = found->second.find(kAveraged);
  if (averaged == found->second.end() || averaged->second == 0) return std::nullopt;
  return state_names_.size() - 1;
}

void Optimizer::update_average(CheckpointState& state) const {
  const size_t place = state_names_.size() - 1;
  double& averaged = state.optimizer().group_scalars[kAverage][kAveraged];
  double kept = static_cast<double>(average_->decay);
  if (average_->warmup) kept = std::min(kept, (1 + averaged) / (10 + averaged));
  if (averaged == 0) kept = 0;  // the average begins with the weights after the first step
  const auto update = [&](OptimizerRun run, const Tensor& average) {
    run.states[0] = average.raw();
    average_weights(run, kept);
  };
  if (are_alike(state.parameters())) {
    for_runs(state, [&](const OptimizerRun& run) { update(run, state.moment_arenas()[place]); });
  } else {
    for (const Parameter& p : state.parameters())
      if (p.trainable) update(run_of(p, p.data.size()), p.moments[place]);
  }
  ++averaged;
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
    found.push_back(concat("\n  \"", p.name, "\": of ", counted(p.gradient.size(), "element"), " ", nans,
                           agreeing(nans, " is", " are"), " NaN and ", infinities, " infinite"));
  }
  std::string text =
      concat("the gradients of ", found.size(), " of ", counted(trainable, "parameter"), " are not finite:");
  for (size_t i = 0; i < std::min(found.size(), kMostNames); ++i) text += found[i];
  if (found.size() > kMostNames) text += concat("\n  and ", found.size() - kMostNames, " more");
  return text;
}

}  // namespace ortrain
