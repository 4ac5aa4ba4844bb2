// Calls that custom operators make while they run: inputs, outputs, memory, threads, other operators.
// Compiled for size: the loop calls a function of the custom operator (CMakeLists.txt).
#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "op/dynamic.h"
#include "op/signature.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain::capi {
namespace {

OrtValue value_of(const ValueRef& value) {
  if (const Tensor* tensor = value.tensor()) return OrtValue{*tensor};
  if (const Sequence* sequence = value.sequence()) return OrtValue{*sequence};
  return OrtValue{Nothing{}};
}

}  // namespace

void finish_outputs(OrtKernelContext& context) {
  for (size_t o = 0; o < context.outputs.size(); ++o) {
    if (!context.outputs[o]) continue;
    const Tensor& made = tensor_of(*context.outputs[o]);
    if (made.dtype() != DType::kString) continue;  // other outputs are already in their place
    const Tensor& place = context.run.out(o, DType::kString, made.shape());
    for (int64_t i = 0; i < made.size(); ++i) text_places(place)[i] = keep_text(*text_places(made)[i]);
  }
}

void KernelContext_GetInputCount(const OrtKernelContext* context, size_t* out) {
  *out = context->info.node.inputs.size();
}
void KernelContext_GetOutputCount(const OrtKernelContext* context, size_t* out) {
  *out = context->info.node.outputs.size();
}

void KernelContext_GetInput(const OrtKernelContext* context, size_t index, const OrtValue** out) {
  require(index < context->inputs.size(), ErrorCode::kInvalidArgument, "there is no input ", index,
          ", expected an index below ", context->inputs.size());
  *out = nullptr;
  if (!context->run.has_input(index)) return;
  auto& input = const_cast<OrtKernelContext*>(context)->inputs[index];
  if (!input) input = std::make_shared<OrtValue>(value_of(context->run.value(index)));
  *out = input.get();
}

void KernelContext_GetOutput(OrtKernelContext* context, size_t index, const int64_t* dim_values,
                             size_t dim_count, OrtValue** out) {
  require(index < context->outputs.size(), ErrorCode::kInvalidArgument, "there is no output ", index,
          ", expected an index below ", context->outputs.size());
  *out = nullptr;
  if (!context->run.has_output(index)) return;
  auto& output = context->outputs[index];
  const Shape shape(dim_values, dim_values + dim_count);
  if (output) {
    require(tensor_of(*output).shape() == shape, ErrorCode::kInvalidArgument, "output ", index,
            " was given the shape ", to_string(tensor_of(*output).shape()), " before, and now ",
            to_string(shape));
  } else {
    const DType type = context->info.outputs[index].dtype;
    require(type != DType::kUndefined, ErrorCode::kInvalidGraph, context->info.node.label(),
            ": the type of output ", index, " is not known; state it in the model");
    output = std::make_shared<OrtValue>(
        OrtValue{type == DType::kString ? text_tensor(shape) : context->run.out(index, type, shape)});
  }
  *out = output.get();
}

void KernelContext_GetPreallocatedOutput(const OrtKernelContext* context, size_t index, OrtValue** out) {
  require(index < context->outputs.size(), ErrorCode::kInvalidArgument, "there is no output ", index,
          ", expected an index below ", context->outputs.size());
  *out = context->outputs[index].get();
}

void KernelContext_GetGPUComputeStream(const OrtKernelContext*, void** out) { *out = nullptr; }
void KernelContext_GetSyncStream(const OrtKernelContext*, OrtSyncStream** out) {
  if (out != nullptr) *out = nullptr;
}
void KernelContext_GetResource(const OrtKernelContext*, int, int resource_id, void**) {
  fail(ErrorCode::kInvalidArgument, "there is no resource ", resource_id, ": the CPU has none");
}
void KernelContext_GetLogger(const OrtKernelContext* context, const OrtLogger** logger) {
  KernelInfo_GetLogger(&context->info, logger);
}
void KernelContext_GetAllocator(const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator** out) {
  *out = default_allocator();
}
void KernelContext_GetScratchBuffer(const OrtKernelContext* context, const OrtMemoryInfo*,
                                    size_t count_or_bytes, void** out) {
  OrtAllocator* allocator = default_allocator();
  std::shared_ptr<void> memory(allocate(allocator, count_or_bytes == 0 ? 1 : count_or_bytes),
                               [allocator](void* p) { allocator->Free(allocator, p); });
  *out = memory.get();
  const_cast<OrtKernelContext*>(context)->scratch.push_back(std::move(memory));
}

void KernelContext_ParallelFor(const OrtKernelContext*, void (*fn)(void*, size_t), size_t total,
                               size_t num_batch, void* usr_data) {
  require(fn != nullptr, ErrorCode::kInvalidArgument, "argument fn is null, expected a function");
  if (num_batch == 1)
    for (size_t i = 0; i < total; ++i) fn(usr_data, i);
  else
    parallel_for(static_cast<int64_t>(total), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn(usr_data, static_cast<size_t>(i));
    });
}

// ---- other operators ----

void CreateOp(const OrtKernelInfo* info, const char* op_name, const char* domain, int version,
              const char** type_constraint_names, const ONNXTensorElementDataType* type_constraint_values,
              int type_constraint_count, const OrtOpAttr* const* attr_values, int attr_count, int input_count,
              int output_count, OrtOp** ort_op) {
  (void)type_constraint_names, (void)type_constraint_values, (void)type_constraint_count;
  require(input_count >= 0 && output_count >= 1 && attr_count >= 0, ErrorCode::kInvalidArgument,
          "an operator with ", counted(input_count, "input"), ", ", counted(output_count, "output"), " and ",
          counted(attr_count, "attribute"), " cannot be created");
  check_elements(attr_values, attr_count, "attr_values", "attr_count");
  Model model;
  Node node;
  node.domain = std::string_view(domain) == "ai.onnx" ? "" : domain;
  node.op_type = op_name;
  for (int i = 0; i < input_count; ++i) {
    node.inputs.push_back(concat("x", i));
    model.graph.inputs.push_back(ValueInfo{node.inputs.back(), DType::kUndefined, std::nullopt});
  }
  for (int o = 0; o < output_count; ++o) {
    node.outputs.push_back(concat("y", o));
    model.graph.outputs.push_back(ValueInfo{node.outputs.back(), DType::kUndefined, std::nullopt});
  }
  for (int a = 0; a < attr_count; ++a) node.attributes[attr_values[a]->name] = attr_values[a]->value;
  model.opsets = {{node.domain, version}};
  model.opsets.emplace("", version);
  model.graph.nodes.push_back(node);
  check_signatures(model);
  *ort_op = new OrtOp{concat(info->node.label(), ": the operator ", node.qualified_type()),
                      InferenceSession(SessionOptions(), std::move(model))};
}

void InvokeOp(const OrtKernelContext*, const OrtOp* ort_op, const OrtValue* const* input_values,
              int input_count, OrtValue* const* output_values, int output_count) {
  auto& session = const_cast<OrtOp*>(ort_op)->session;
  require(static_cast<size_t>(input_count) == session.inputs().size() &&
              static_cast<size_t>(output_count) == session.outputs().size(),
          ErrorCode::kInvalidArgument, ort_op->label, " has ", counted(session.inputs().size(), "input"),
          " and ", counted(session.outputs().size(), "output"), ", found ", input_count, " and ",
          output_count);
  std::vector<std::string> inputs, outputs;
  std::vector<Value> given, made;
  for (int i = 0; i < input_count; ++i) {
    inputs.push_back(session.inputs()[static_cast<size_t>(i)].name);
    given.push_back(input_values[i] ? input_values[i]->value : Value(Nothing{}));
  }
  for (int o = 0; o < output_count; ++o) {
    outputs.push_back(session.outputs()[static_cast<size_t>(o)].name);
    made.push_back(output_values[o] ? output_values[o]->value : Value(Tensor()));
  }
  session.run(inputs, given, outputs, made);
}

}  // namespace ortrain::capi
