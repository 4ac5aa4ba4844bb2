// Program: a graph compiled for given input shapes, as a flat list of kernels over planned memory.
//
// Compilation visits the nodes once, in order. For each node:
//
// Shapes. All input shapes are known, so the shape rules determine the shapes of all values.
//
// Folding. If every input is a constant, the kernel is created and run at once, and its outputs are
// constants. There is no separate evaluator: shape arithmetic, transposed weights and converted constants
// are computed by the kernels that a step would run. A shape rule may also give the value of an output
// (Shape). Nodes without elements in their outputs have no kernel unless they update state: a loop over
// the other dimensions could take hours. Operators with side effects or random numbers are marked `impure`
// and never folded.
//
// Layouts. A kernel requests each input in the layout that suits it. If the value is stored in another
// one, a conversion is inserted once and cached as a copy. Elementwise kernels accept any layout and keep
// it, so no conversion remains between two convolutions. This is not a pass over the graph, because layouts
// depend on input shapes.
//
// bfloat16. With mixed precision, a float value may be stored in bfloat16. That is one more layout: the
// type stays float, so shape rules, models and checkpoints do not change. A kernel writes bfloat16 if a
// reader accepts it (Traits::takes_bf16, KernelContext::wants_bf16). Conversion nodes would instead give
// every shape rule a second type to handle.
//
// Narrow types. Kernels compute in float, double and integers of whole bytes. A float16 or bfloat16 value
// also has a wide form in float, which operators see unless they declare otherwise (Traits::narrow_types).
// Only a form that something reads gets memory, and it is converted once. So a half-precision model runs
// in float and is rounded where an output, a Cast or the model's state requires it. Packed elements (int4,
// float4e2m1) are read as one byte each in the same way.
//
// Memory. An output gets new memory, or the memory of an input that nothing reads afterwards if the kernel
// allows it, or for views such as Reshape the memory of the input. A gradient that overwrites an
// accumulation buffer is computed in that buffer (Traits::writes_through). Memory of all intermediate
// values is one block (program/memory_plan.h), shared by all Programs of a session because they never run
// at once.
//
// Kernel. The operator returns a function in which everything is decided: primitives are built, loops
// chosen, scratch memory requested. A run sets the addresses of the inputs, walks the list of these
// functions, and copies outputs to the caller. It allocates nothing; a test counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "op/kernel.h"
#include "program/limits.h"
#include "program/profile.h"
#include "runtime/tensor.h"

namespace ortrain {

// The memory of intermediate values, shared by the Programs of a session (they never run at once).
class Arena {
 public:
  // Grows to at least `bytes`; if addresses change, so does `generation`.
  void reserve(size_t bytes);
  std::byte* base() const { return block_.get(); }
  size_t bytes() const { return bytes_; }
  uint64_t generation() const { return generation_; }

 private:
  std::shared_ptr<std::byte> block_;
  size_t bytes_ = 0;
  uint64_t generation_ = 0;
};

// Called during a run as soon as nodes have brought a state up to date; the run does not change it any more.
using StateWatch = std::function<void(const std::string& state)>;

// The input of a compilation.
struct ProgramRequest {
  const Graph* graph = nullptr;
  const std::vector<Node>* nodes = nullptr;  // those to be run, if not all of the graph's
  const std::map<std::string, int64_t>* opsets = nullptr;
  std::vector<std::string> inputs;                 // given for each run, in this order
  std::vector<Tensor> example_inputs;              // their types and shapes; values are not used
  std::unordered_map<std::string, Tensor> states;  // model state: fixed memory that nodes may read and update
  std::unordered_map<std::string, LayoutPtr>
      layouts;  // of states that are not row-major; all are without padding
  std::unordered_map<std::string, Tensor> constants;  // inputs whose values are fixed for this Program
  std::vector<std::string> outputs;                   // requested, in this order
  // The first `direct_outputs` of `outputs` are computed directly in the caller's tensors, whose memory
  // nothing else uses during the run.
  size_t direct_outputs = 0;
  // Shapes of values of the graph that are not in this Program; null if one is not known.
  std::function<const Shape*(const std::string&)> shape_of;
  std::shared_ptr<Arena> arena;
  Precision precision = Precision::kFloat;
  // The most bytes that intermediate values may take; 0: no limit. If they would take more, activations are
  // recomputed for the backward pass (program/recompute.h, where kAutomaticBudget is).
  size_t memory_budget = 0;
  bool check_finite = false;  // stop at the first node that produces a NaN or an infinity
  // States that are updated all or not at all: a run that has begun to update them is not interrupted.
  std::set<std::string> updated_together;
  ProgramLimits limits = {};
};

// The memory that a Program needs for intermediate values.
struct ProgramMemory {
  size_t arena = 0;  // bytes of the block that holds them
  size_t live = 0;   // the largest sum of those in use at once: no placement can need less
};

class Program {
 public:
  // Compiles. Throws an Error that names the node if a shape or a type does not fit or is beyond the limits,
  // and one that states the smallest possible number of bytes if the memory budget is smaller.
  explicit Program(const ProgramRequest& request);
  ~Program();

  // Type and shape of output i.
  DType output_dtype(size_t i) const;
  const Shape& output_shape(size_t i) const;

  const ProgramMemory& memory() const;

  // Runs. `outputs` are defined tensors of the right types and shapes. Ends early with an error if *terminate
  // is set. A profile records the memory in use and the time of every kernel; `watch` may be null.
  void run(std::span<const Tensor* const> inputs, std::span<const Tensor* const> outputs, uint64_t run,
           const std::atomic<bool>* terminate = nullptr, Profile* profile = nullptr,
           const StateWatch* watch = nullptr);

  struct Impl;  // what the compiler builds

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
