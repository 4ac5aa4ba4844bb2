// Executor: runs a graph for any inputs. A graph whose shapes depend only on those of its inputs is one
// Program. Other graphs are cut into segments where a shape depends on values; each segment is compiled when
// those values are known.
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
  // Of states that are not row-major. Only kernels of Programs may read these.
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
