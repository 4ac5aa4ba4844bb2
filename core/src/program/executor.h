// Executor: runs a graph for any inputs. A graph whose shapes depend only on those of its inputs is one
// Program. Other graphs are cut into segments where a shape depends on values; each segment is compiled when
// those values are known.
//
// The nodes of a segment are a Program. Values that later segments read are in memory of the executor,
// which is kept between runs. Between two segments run the nodes whose output shapes depend on data
// (op/dynamic.h).
//
// Segments form a tree. A segment keeps its successors, keyed by the types and shapes that its dynamic
// nodes produced and by the contents that determined shapes. A run that meets values seen before walks
// down the tree and compiles nothing. Each list of segments is bounded; the least recently used segment is
// dropped. When a dynamic node produces a second shape, the last nodes that have the same shapes in both
// plans, such as the backward pass of the layers before a mask, become a separate segment that serves all
// shapes. So a mask whose size changes in every step recompiles only what depends on its size.
//
// Subgraphs of If, Loop and Scan have executors too, which read values of the enclosing graphs as
// additional inputs. Random numbers differ between iterations because the iteration is part of the run
// number. A memory budget applies to each Program; values passed between Programs are not part of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "op/dynamic.h"
#include "program/program.h"

namespace ortrain {

// The settings that an executor shares with those of its subgraphs.
struct ExecutorSettings {
  const Model* model = nullptr;  // for the operator sets and the types in subgraphs
  std::shared_ptr<Arena> arena;
  Precision precision = Precision::kFloat;
  size_t memory_budget = 0;  // of each Program
  bool check_finite = false;
  std::set<std::string> updated_together = {};  // see ProgramRequest
  // The layouts of states that are not row-major. Only kernels of Programs may read these.
  std::unordered_map<std::string, LayoutPtr> layouts = {};
  ProgramLimits limits = {};  // of each Program
};

// One run.
struct RunScope {
  // States and constants bind the graph's other inputs. States are the same in all runs, constants in all
  // runs of one variant.
  int variant = 0;
  const std::unordered_map<std::string, Tensor>* states = nullptr;
  const std::unordered_map<std::string, Tensor>* constants = nullptr;
  uint64_t number = 0;  // the counter of random operators
  const std::atomic<bool>* terminate = nullptr;
  Profile* profile = nullptr;
  bool* started = nullptr;  // if not null, set before the first kernel runs
  const StateWatch* watch = nullptr;
};

class Executor {
 public:
  // `graph` must outlive this. `constants` are values of the enclosing graphs that never change.
  Executor(const Graph& graph, std::vector<std::string> inputs, std::vector<std::string> outputs,
           ExecutorSettings settings, std::unordered_map<std::string, Tensor> constants = {});
  ~Executor();

  // Compiles what is needed, runs it and returns the outputs. A graph of one Program requests the memory of
  // all its outputs before anything runs.
  void run(std::span<const ValueRef> inputs, OutputPlaces& outputs, const RunScope& scope);

  // How many segments were compiled so far, including those of subgraphs.
  size_t compilations() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
