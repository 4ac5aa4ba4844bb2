// Optimizers over sequences of parameters, as in the optimizer models of artifacts (com.microsoft):
// AdamWOptimizer, SGDOptimizerV2, and InplaceClipGradNorm, which runs before them. If an output is requested,
// the node returns updated copies there; without the output, the node updates weights and moments in place,
// in the caller's tensors. Training sessions compute the same step in one pass over all parameters
// (session/optimizer.h).
#include "ops/control/sequence.h"
#include "ops/optimizer/optimizer_update.h"

namespace ortrain {
namespace {

// The sequences of a node, all with elements of the shapes of the weights.
class Sequences {
 public:
  Sequences(DynamicContext& c, size_t first, size_t count) : c_(c), first_(first) {
    const Sequence& weights = c.sequence(first);
    for (size_t s = 1; s < count; ++s) {
      const Sequence& other = c.sequence(first + s);
      c.expect(other.size() == weights.size(), "input ", first + s, " has ", counted(other.size(), "tensor"),
               ", expected ", weights.size(), ", as many as input ", first);
      for (size_t i = 0; i < weights.size(); ++i) {
        const bool moment = s > 1 && is_half(weights.dtype());
        const DType expected = moment ? DType::kFloat : weights.dtype();
        c.expect(other.at(i).shape() == weights.at(i).shape() && other.dtype() == expected, "tensor ", i,
                 " of input ", first + s, " is ", describe(other.at(i)), ", expected ", to_string(expected),
                 to_string(weights.at(i).shape()));
      }
    }
  }

  size_t size() const { return c_.sequence(first_).size(); }
  DType dtype() const { return c_.sequence(first_).dtype(); }
  const Tensor& at(size_t s, size_t i) const { return c_.sequence(first_ + s).at(i); }

  // Sequence s for writing: if output o is requested, a copy, which `give` returns.
  const Sequence& updated(size_t s, size_t o) {
    const Sequence& given = c_.sequence(first_ + s);
    if (!c_.has_output(o)) return given;
    kept_.emplace_back(o, given.clone());
    return kept_.back().second;
  }
  void give() {
    for (const auto& [o, sequence] : kept_) c_.set(o, sequence);
  }
  // Output o is sequence s unchanged.
  void pass(size_t s, size_t o) { c_.set(o, c_.sequence(first_ + s)); }

 private:
  DynamicContext& c_;
  size_t first_;
  std::deque<std::pair<size_t, Sequence>> kept_;
};

double scalar_in(const DynamicContext& c, size_t i) {
  const Tensor& value = c.in(i);
  c.expect(value.size() == 1, "input ", i, " must be a single value, found ", describe(value));
  return value.to_double()[0];
}

// Whether anything is updated; sets output 0 accordingly.
bool updates(DynamicContext& c, size_t signal) {
  const bool yes = !c.has_input(signal) || scalar_in(c, signal) != 0;
  if (c.has_output(0)) *c.out(0, DType::kBool, {1}).data<bool>() = yes;
  return yes;
}

// Rejects a node that updates a group of parameters: the node gets sequences, whose tensors have no names, so
// only a training session knows the groups.
bool updates_a_group(TypeContext& c) {
  if (!c.node().has("parameters")) return false;
  c.reject("its attribute 'parameters' names a group of parameters, and only a training session has groups");
  return true;
}

// Inputs `first` to `first + count - 1` are sequences of floating-point tensors; the outputs after the flag
// are the updated values of some of them.
void update_types(TypeContext& c, size_t first, size_t count, std::initializer_list<size_t> results) {
  for (size_t s = 0; s < count; ++s) {
    if (!expect_sequence(c, first + s)) return;
    const DType dtype = c.input(first + s).dtype;
    if (dtype != DType::kUndefined && !is_floating(dtype))
      return c.reject(concat("input ", first + s, " ('", c.node().inputs[first + s],
                             "') is a sequence of type ", to_string(dtype),
                             ", expected floating-point numbers"));
  }
  c.output(0, DType::kBool, std::vector<Dim>{Dim{1, ""}});
  size_t o = 1;
  for (const size_t s : results) c.output(o++, c.input(first + s));
}

// ---------------------------------------------------------------------------------------------------------------------
// AdamWOptimizer: learning rate, step (from 1), weights, gradients, first and second moments, update signal.
// The formula is in backend/cpu/optimizer/rules/adamw.cpp.

void adamw_types(TypeContext& c) {
  if (c.node().inputs.size() < 6)
    return c.reject(concat("it has ", counted(c.node().inputs.size(), "input"), ", expected at least 6"));
  if (const std::string problem = problem_of(adamw_attributes(c.node())); !problem.empty())
    return c.reject(problem);
  if (updates_a_group(c)) return;
  update_types(c, 2, 4, {0, 2, 3});
}

void adamw_run(DynamicContext& c) {
  const AdamWSettings attributes = adamw_attributes(c.node());
  const std::string problem = problem_of(attributes);
  c.expect(problem.empty(), problem);
  Sequences all(c, 2, 4);
  if (!updates(c, 6)) {
    all.pass(0, 1);
    all.pass(2, 2);
    all.pass(3, 3);
    return;
  }
  const double step = scalar_in(c, 1);
  c.expect(step >= 1 && step < 0x1p63, "input 1, the step, is ", step, ", expected 1 or more");
  const AdamWFactors<double> factors = adamw_factors(attributes, scalar_in(c, 0), static_cast<int64_t>(step));
  const Sequence &weights = all.updated(0, 1), &first = all.updated(2, 2), &second = all.updated(3, 3);
  for (size_t i = 0; i < all.size(); ++i)
    adamw({all.dtype(),
           weights.at(i).raw(),
           all.at(1, i).raw(),
           {first.at(i).raw(), second.at(i).raw()},
           weights.at(i).size()},
          factors, 1);
  all.give();
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "AdamWOptimizer",
                  .signature = "lr, step, weights, gradients, momentums_1, momentums_2, update_signal? -> "
                               "updated_flag, updated_weights?, updated_momentums_1?, updated_momentums_2?",
                  .rules = {.types = adamw_types},
                  .traits = {.impure = true, .takes_sequences = true},
                  .kernels = {.run = adamw_run}});

// ---------------------------------------------------------------------------------------------------------------------
// SGDOptimizerV2: learning rate, weights, gradients, update signal. w - rate g

void sgd_types(TypeContext& c) {
  if (c.node().inputs.size() < 3)
    return c.reject(concat("it has ", counted(c.node().inputs.size(), "input"), ", expected at least 3"));
  if (updates_a_group(c)) return;
  update_types(c, 1, 2, {0});
}

void sgd_run(DynamicContext& c) {
  Sequences all(c, 1, 2);
  if (!updates(c, 3)) return all.pass(0, 1);
  const double rate = scalar_in(c, 0);
  const Sequence& weights = all.updated(0, 1);
  for (size_t i = 0; i < all.size(); ++i)
    sgd({all.dtype(), weights.at(i).raw(), all.at(1, i).raw(), {}, weights.at(i).size()}, rate);
  all.give();
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "SGDOptimizerV2",
                  .signature = "lr, weights, gradients, update_signal? -> update_completed, updated_weights?",
                  .rules = {.types = sgd_types},
                  .traits = {.impure = true, .takes_sequences = true},
                  .kernels = {.run = sgd_run}});

// ---------------------------------------------------------------------------------------------------------------------
// InplaceClipGradNorm: the gradients, scaled together so that the norm of all their elements is at most
// max_norm.

void clip_types(TypeContext& c) {
  if (const std::string norm = c.node().string_or("norm_type", "fro"); norm != "fro")
    return c.reject(concat("expected norm_type 'fro', found '", norm, "'"));
  if (expect_sequence(c, 0)) c.output(0, c.input(0));
}

void clip_run(DynamicContext& c) {
  const Sequence& gradients = c.sequence(0);
  double squares = 0;
  for (size_t i = 0; i < gradients.size(); ++i)
    squares +=
        sum_of_squares({gradients.dtype(), nullptr, gradients.at(i).raw(), {}, gradients.at(i).size()});
  const double factor = clip_factor(squares, c.node().float_or("max_norm", 1));
  const Sequence clipped = gradients.clone();
  for (size_t i = 0; i < clipped.size(); ++i)
    scale({clipped.dtype(), clipped.at(i).raw(), gradients.at(i).raw(), {}, clipped.at(i).size()}, factor);
  c.set(0, clipped);
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "InplaceClipGradNorm",
                  .signature = "gradients -> clipped_gradients",
                  .rules = {.types = clip_types},
                  .traits = {.takes_sequences = true},
                  .kernels = {.run = clip_run}});

}  // namespace
}  // namespace ortrain
