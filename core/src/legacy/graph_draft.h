// A training graph that is being built: the data that the parts of its construction share
// (legacy/training_graph.cpp).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "legacy/process_part.h"
#include "legacy/training_graph.h"

namespace ortrain {

struct GraphDraft {
  explicit GraphDraft(const ProcessPart& part);
  GraphDraft(const GraphDraft&) = delete;
  GraphDraft& operator=(const GraphDraft&) = delete;

  // With ZeRO each process updates a part of the weights.
  bool is_divided() const { return p.data_parallel_size > 1 && p.deepspeed_zero_stage != 0; }
  bool is_shared() const { return p.world_size > 1; }
  bool has_buffers() const { return p.gradient_accumulation_steps > 1 || is_shared(); }
  int64_t accumulated() const;  // the number of runs whose gradients are added up

  const Tensor& weight_value(const std::string& weight) const {
    return forward.graph.initializers.at(weight);
  }

  // Adds a node with that output, and returns the output.
  std::string add(const std::string& type, const std::vector<std::string>& inputs, const std::string& output,
                  const Attributes& attributes = {}, const std::string& domain = "");
  // Adds an initializer with that name or, if it is taken, a similar one, which is returned.
  std::string constant(const std::string& base, Tensor value);
  // Adds an input of one float. Throws kInvalidArgument, mentioning `what`, if the name is taken.
  void add_input(const std::string& name, const char* what);
  void add_output(const std::string& name, DType dtype, std::optional<std::vector<Dim>> dims);
  void remove_input(const std::string& name);
  // Adds an initializer that is a state. Throws kInvalidArgument if the name is taken.
  void add_state(const std::string& name, StateRole role, const std::string& weight, Tensor value);

  // Has weights that are inputs of the graph become initializers again.
  void restore_weights(Graph& graph) const;
  // Writes the graph to a file, if the path is not empty and this is the first process.
  void dump(const std::string& path) const;

  const ProcessPart& part;
  const Model& forward = part.model;
  const TrainingGraphRequest& request = part.request;
  const TrainingParameters& p = request.parameters;

  TrainingGraph out;
  Graph& graph = out.model.graph;
  std::vector<std::string> weights;              // that are trained, in the order of the model
  std::map<std::string, std::string> halves;     // the 16-bit copies that nodes read, by weight
  std::map<std::string, std::string> gradients;  // by weight
  std::vector<ValueInfo> own_outputs;            // of the forward model
};

// A tensor of zeros, a float16 copy, and a copy of some elements as a vector.
Tensor zeros(DType dtype, const Shape& shape);
Tensor half_of(const Tensor& value);
Tensor elements_of(const Tensor& whole, int64_t first, int64_t count);

}  // namespace ortrain
