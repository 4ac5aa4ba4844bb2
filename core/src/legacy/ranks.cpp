// Checks the parameters that say how many processes train and in which way, and computes the place of a
// process among them. The ranges of weights that ZeRO gives to each process are computed here too. This file
// does not depend on graphs.
#include "legacy/ranks.h"

#include <algorithm>

#include "runtime/error.h"

namespace ortrain {

void check_ranks(const TrainingParameters& p) {
  require(p.world_size >= 1, ErrorCode::kInvalidArgument, "world_size: expected 1 or more, found ",
          p.world_size);
  require(p.world_rank >= 0 && p.world_rank < p.world_size, ErrorCode::kInvalidArgument,
          "world_rank: expected 0 to ", p.world_size - 1, " with world_size ", p.world_size, ", found ",
          p.world_rank);
  for (const auto& [name, size] : {std::pair("data_parallel_size", p.data_parallel_size),
                                   std::pair("horizontal_parallel_size", p.horizontal_parallel_size),
                                   std::pair("pipeline_parallel_size", p.pipeline_parallel_size)})
    require(size >= 1 && size <= p.world_size, ErrorCode::kInvalidArgument, name,
            ": expected 1 to world_size, found ", name, ": ", size, ", world_size: ", p.world_size);
  const int64_t product = p.data_parallel_size * p.horizontal_parallel_size * p.pipeline_parallel_size;
  require(product == p.world_size, ErrorCode::kInvalidArgument,
          "data_parallel_size * horizontal_parallel_size * pipeline_parallel_size: expected world_size, ",
          p.world_size, ", found ", p.data_parallel_size, " * ", p.horizontal_parallel_size, " * ",
          p.pipeline_parallel_size, " = ", product);
  if (p.data_parallel_size > 1) {
    const bool zero = p.deepspeed_zero_stage != 0;
    require(
        !zero || !p.enable_adasum, ErrorCode::kInvalidArgument,
        "deepspeed_zero_stage and enable_adasum exclude each other: Adasum needs the whole update on each "
        "process");
    require(p.allreduce_post_accumulation || p.enable_adasum, ErrorCode::kInvalidArgument,
            "data_parallel_size is ", p.data_parallel_size, zero ? " with deepspeed_zero_stage" : "",
            ": expected allreduce_post_accumulation", zero ? "" : " or enable_adasum",
            " to be set; otherwise the weights of the processes would differ");
    require(!p.enable_adasum || (p.data_parallel_size & (p.data_parallel_size - 1)) == 0,
            ErrorCode::kInvalidArgument, "enable_adasum combines pairs: expected data_parallel_size to be a ",
            "power of 2, found ", p.data_parallel_size);
    require(!zero || p.training_optimizer_name != "LambOptimizer", ErrorCode::kNotImplemented,
            "deepspeed_zero_stage: LambOptimizer needs the norm of whole weights, which ZeRO divides; use "
            "AdamOptimizer or SGDOptimizer");
  }
  if (p.horizontal_parallel_size > 1) {
    require(p.pipeline_parallel_size == 1, ErrorCode::kNotImplemented, "horizontal_parallel_size is ",
            p.horizontal_parallel_size, " and pipeline_parallel_size ", p.pipeline_parallel_size,
            ": a model can be divided in only one of these ways");
  }
  if (p.pipeline_parallel_size > 1) {
    require(p.num_pipeline_micro_batches >= 1, ErrorCode::kInvalidArgument,
            "num_pipeline_micro_batches: expected 1 or more, found ", p.num_pipeline_micro_batches);
  }
  require(!p.enable_adasum || p.data_parallel_size == p.world_size, ErrorCode::kNotImplemented,
          "enable_adasum is for processes that all have the whole model, found horizontal_parallel_size ",
          p.horizontal_parallel_size, " and pipeline_parallel_size ", p.pipeline_parallel_size);
  require(p.world_size == 1 || !p.set_gradients_as_graph_outputs, ErrorCode::kNotImplemented,
          "set_gradients_as_graph_outputs: expected one process, found world_size ", p.world_size);
}

RankPlace place_of(const TrainingParameters& p) {
  const int64_t h = p.horizontal_parallel_size, d = p.data_parallel_size;
  return {p.world_rank / h % d, p.world_rank % h, p.world_rank / (h * d)};
}

std::vector<Range> zero_ranges(const std::vector<int64_t>& counts, int64_t processes, int64_t process) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  const int64_t unit = processes * 32;
  const int64_t share = (total + unit - 1) / unit * unit / processes;
  const int64_t first = share * process, last = first + share;
  std::vector<Range> ranges;
  int64_t at = 0;
  for (const int64_t count : counts) {
    const int64_t from = std::clamp(first - at, int64_t{0}, count);
    const int64_t to = std::clamp(last - at, int64_t{0}, count);
    ranges.push_back({from, to - from});
    at += count;
  }
  return ranges;
}

std::string zero_view_name(const std::string& weight, const Range& range) {
  return concat(weight, "_view_", range.first > 0 ? 1 : 0);
}

}  // namespace ortrain
