// What an optimizer is: a declaration, registered under a name.
//
// A file in rules/ declares an optimizer: its settings, its states, the numbers of a step, and the update of
// one element as an expression (pass-inl.h). Everything else follows from the declaration: the optimizer
// model, the arenas and the layout of the checkpoint, the settings of parameter groups, the blocks and names
// of Python, and the table of the documentation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/optimizer/optimizer_run.h"
#include "built_operators.h"
#include "runtime/registry.h"

namespace ortrain {

struct OptimizerSetting {
  const char* name;
  float value;  // unless the optimizer model states another
  const char* meaning;
  float least = -std::numeric_limits<float>::infinity(), below = std::numeric_limits<float>::infinity();
  bool is_flag = false;  // 0 or 1, an integer in the model, which does not change while training
};

// An array with an element for each element of the parameters, zero at first. Optimizers whose states have
// the same names and order can continue each other's checkpoints.
struct StateDeclaration {
  const char* name;
  const char* meaning;
  // Settings that are zero in all groups do not need the states that name them here.
  const char* when = nullptr;
  // Whether the state is a weight: eval steps and exports use it in the place of the weight that is trained.
  bool is_evaluated = false;
};

// A number that the optimizer keeps for each group of parameters.
struct ScalarDeclaration {
  const char* name;
  double value;  // before the first step
};

struct Formula;
struct OptimizerRule;
struct SymbolicStep;
struct TensorRule;

// The values of a group of parameters: one for each setting and each scalar of the declaration.
struct OptimizerValues {
  std::vector<float> settings;
  std::vector<double> scalars;
};

// What the numbers of a step depend on.
struct OptimizerStep {
  using Number = double;

  const OptimizerRule& rule;
  OptimizerValues& values;
  double rate;            // the learning rate of the group
  double step;            // from 1
  double gradient_scale;  // by which gradients are multiplied, to clip them

  // A setting by name.
  double operator[](std::string_view name) const;
  // A scalar by name, for reading and writing.
  double& scalar(std::string_view name) const;
};

// Functions for the numbers of a step, beside those of <cmath>. Symbols have them too (formula.h), so that a
// declaration is both run and recorded.
inline double choose(bool condition, double yes, double no) { return condition ? yes : no; }
inline double larger(double a, double b) { return std::max(a, b); }
inline double smaller(double a, double b) { return std::min(a, b); }
inline double power(double base, double exponent) { return std::pow(base, exponent); }
inline double one_minus_power(double base, double exponent) { return 1 - std::pow(base, exponent); }

inline constexpr size_t kMostFactors = 16, kMostSums = 4;

// The compiled passes of an optimizer with a given set of states. `factors` are the numbers of a step, which
// are rounded to the type of the elements.
struct OptimizerPasses {
  size_t states, factors, sums;
  int64_t cost;  // of an element, as parallel_for takes it
  void (*prepare)(const OptimizerStep& step, double* factors);
  void (*of_float)(float* w, const float* g, float* const* s, int64_t n, const float* factors, float scale);
  void (*of_double)(double* w, const double* g, double* const* s, int64_t n, const double* factors,
                    double scale);
  // Optimizers that need sums over a whole tensor read it twice: the first pass updates states and adds to
  // the sums, `combine` turns these into factors of the second pass.
  void (*measure_float)(const float* w, const float* g, float* const* s, int64_t n, const float* factors,
                        float scale, double* sums) = nullptr;
  void (*measure_double)(const double* w, const double* g, double* const* s, int64_t n, const double* factors,
                         double scale, double* sums) = nullptr;
  void (*combine)(const double* sums, double* factors) = nullptr;
  // Runs the declaration with symbols (formula.h). `states` are the names of the states.
  void (*record)(Formula& formula, const SymbolicStep& step,
                 const std::vector<std::string>& states) = nullptr;
};

struct OptimizerRule {
  std::string name;   // in models, checkpoints and on the command line: "lion"
  std::string title;  // in Python and in texts: "Lion"
  // The operator of com.microsoft that the model has. Empty: Optimizer of the domain ortrain, which names the
  // optimizer.
  std::string node = {};
  // Whether the values below are those of a node of com.microsoft without attributes.
  bool reads_node = false;
  std::string formula;  // of a step, in the words of the settings and states
  std::string source;
  std::vector<OptimizerSetting> settings = {};
  std::vector<StateDeclaration> states = {};
  std::vector<ScalarDeclaration> scalars = {};
  // One for each set of states: bit i of the index stands for the i-th state that has a `when`.
  std::vector<OptimizerPasses> passes = {};
  // In the place of passes: a step of whole tensors (tensor_rule.h).
  const TensorRule* of_tensor = nullptr;
  // The problem with settings; empty if there is none.
  std::string (*problem)(const OptimizerStep& step) = nullptr;

  // The place of a setting; SIZE_MAX if there is none with that name.
  size_t setting(std::string_view name) const;
  // The place of a scalar. Throws if there is none with that name.
  size_t scalar(std::string_view name) const;
  OptimizerValues defaults() const;
};

// By name; null if there is none.
const OptimizerRule* find_optimizer(std::string_view name);
// That which a node of com.microsoft without attributes describes; null if there is none.
const OptimizerRule* optimizer_of_node(std::string_view op_type);
// All of them, sorted by name.
std::vector<const OptimizerRule*> all_optimizers();

// One step of the arrays with the factors from `prepare`. Optimizers with sums take the arrays of one tensor.
void run_optimizer(const OptimizerPasses& passes, const OptimizerRun& run, const double* factors,
                   double gradient_scale);

bool register_optimizer(OptimizerRule rule, SourcePlace where);

// Whether the build has an optimizer, by its title. built_operators.h lists optimizers by their names without
// underscores.
template <size_t N>
static constexpr bool has_optimizer(const char (&title)[N]) {
  char name[N - 1] = {};
  for (size_t i = 0; i + 1 < N; ++i)
    name[i] = static_cast<char>(title[i] >= 'A' && title[i] <= 'Z' ? title[i] - 'A' + 'a' : title[i]);
  return is_built("ortrain.Optimizer", {name, N - 1});
}

// ORTRAIN_OPTIMIZER(Lion, {.name = "lion", ...}), where the name is the title in lower case, with or without
// underscores.
#define ORTRAIN_OPTIMIZER(Title, ...)                                             \
  [[maybe_unused]] const bool kRegistered##Title = [](SourcePlace where) {        \
    if constexpr (::ortrain::has_optimizer(#Title))                               \
      ::ortrain::register_optimizer(::ortrain::OptimizerRule __VA_ARGS__, where); \
    return true;                                                                  \
  }(::ortrain::SourcePlace::here())

}  // namespace ortrain
