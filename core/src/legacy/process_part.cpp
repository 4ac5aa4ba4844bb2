// Chooses what this process trains: the whole model, its share of divided layers, or its stage of a pipeline.
// Parameters that name weights are changed to match, so that the files that build the training graph treat
// every process alike.
#include "legacy/process_part.h"

#include <utility>

#include "legacy/pipeline_stage.h"
#include "legacy/ranks.h"
#include "runtime/error.h"

namespace ortrain {

namespace {

// Moves the setting of a weight to the name of its part.
template <typename Map>
void rename_entry(Map& map, const std::string& from, const std::string& to) {
  if (auto entry = map.extract(from); !entry.empty()) {
    entry.key() = to;
    map.insert(std::move(entry));
  }
}

ProcessPart part_of_layers(const Model& forward, const TrainingGraphRequest& request) {
  HorizontalSplit split = split_layers(forward, request.parameters);
  TrainingGraphRequest own = request;
  TrainingParameters& p = own.parameters;
  for (const auto& [name, whole] : split.weights) {
    if (p.weights_to_train.erase(whole.name)) p.weights_to_train.insert(name);
    rename_entry(p.optimizer_attributes_map, whole.name, name);
    rename_entry(p.optimizer_int_attributes_map, whole.name, name);
    rename_entry(own.initial_state, whole.name, name);
    if (const auto states = own.initial_state.find(name); states != own.initial_state.end())
      for (auto& [state, value] : states->second)
        if (value.shape() == whole.shape)
          value = part_of(value, whole.partition, p.horizontal_parallel_size, place_of(p).horizontal);
  }
  return {std::move(split.model), std::move(own), {}, std::move(split.weights), std::move(split.warnings)};
}

ProcessPart stage_of_pipeline(const Model& forward, const TrainingGraphRequest& request) {
  PipelineStage stage = pipeline_stage(forward, request.parameters);
  TrainingGraphRequest own = request;
  TrainingParameters& p = own.parameters;
  p.loss_output_name = stage.loss;
  std::erase_if(p.weights_to_train,
                [&](const std::string& name) { return !stage.model.graph.is_initializer(name); });
  require(request.parameters.weights_to_train.empty() || !p.weights_to_train.empty(),
          ErrorCode::kInvalidArgument, "stage ", place_of(p).stage + 1,
          " of the pipeline has none of weights_to_train");
  return {std::move(stage.model), std::move(own), std::move(stage.received)};
}

}  // namespace

bool ProcessPart::ends_in_loss() const {
  return place_of(request.parameters).stage == request.parameters.pipeline_parallel_size - 1;
}

ProcessPart process_part(const Model& forward, const TrainingGraphRequest& request) {
  check_ranks(request.parameters);
  if (request.parameters.horizontal_parallel_size > 1) return part_of_layers(forward, request);
  if (request.parameters.pipeline_parallel_size > 1) return stage_of_pipeline(forward, request);
  return {forward, request};
}

}  // namespace ortrain
