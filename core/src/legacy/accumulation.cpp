// Adds the nodes after the gradients of a training graph: a buffer for each weight, in which the gradients of
// several runs add up, and the norm of all gradients. A process that trains together with others gets the
// norm as an input, because the norm depends on the gradients of all processes.
#include "legacy/accumulation.h"

#include <vector>

#include "op/operator.h"
#include "runtime/error.h"

namespace ortrain {

void accumulate(GraphDraft& d) {
  std::vector<std::string> done;
  for (const std::string& weight : d.weights) {
    std::string& gradient = d.gradients[weight];
    const DType dtype = d.weight_value(weight).dtype();
    if (d.halves.count(weight) && gradient != weight + "_grad")
      gradient = d.add("Cast", {gradient}, d.graph.unique_name(weight + "_grad"),
                       {{"to", static_cast<int64_t>(dtype)}});
    const std::string buffer = weight + "_grad_accumulate_buffer";
    d.add_state(buffer, StateRole::kGradient, weight, zeros(dtype, d.weight_value(weight).shape()));
    done.push_back(d.graph.unique_name(weight + "_grad_accumulated"));
    const std::string sum = d.graph.unique_name(weight + "_grad_sum");
    d.add("InPlaceAccumulatorV2", {buffer, gradient}, done.back(), {}, kMicrosoft);
    d.graph.nodes.back().outputs.push_back(sum);
    gradient = d.is_shared() ? buffer : sum;
  }
  const std::string group =
      d.add("Group", done, d.graph.unique_name("Group_Accumulated_Gradients"), {}, kMicrosoft);
  d.add_output(group, DType::kBool, std::vector<Dim>{Dim{1, ""}});
}

GradientNorm add_norm(GraphDraft& d) {
  GradientNorm norm;
  if (d.is_shared()) {  // the gradients of other processes count too
    norm.value = "global_gradient_norm";
    require(d.graph.unique_name(norm.value) == norm.value, ErrorCode::kInvalidArgument,
            "the model has a value \"", norm.value, "\" already, which is an input of the update");
    d.graph.inputs.push_back({norm.value, DType::kFloat, std::vector<Dim>{}});
    return norm;
  }
  std::vector<std::string> all;
  for (const std::string& weight : d.weights) all.push_back(d.gradients[weight]);
  const std::string name = d.graph.unique_name("global_gradient_norm");
  norm.value =
      d.add("ReduceAllL2", all, d.accumulated() > 1 ? d.graph.unique_name("summed_gradient_norm") : name, {},
            kMicrosoft);
  if (d.accumulated() > 1)
    d.add("Mul",
          {norm.value,
           d.constant("gradient_average", Tensor::scalar(1.0f / static_cast<float>(d.accumulated())))},
          name);
  d.add_output(name, DType::kFloat, std::vector<Dim>{});
  if (!d.p.use_mixed_precision) return norm;
  norm.finite = d.add("IsAllFinite", {name}, d.graph.unique_name("all_gradients_finite"), {}, kMicrosoft);
  d.add_output(norm.finite, DType::kBool, std::vector<Dim>{});
  return norm;
}

}  // namespace ortrain
