// Custom operators of the program: domains, libraries of them, and their nodes.
#include <dlfcn.h>

#include <algorithm>
#include <climits>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "graph/onnx_io.h"
#include "op/dynamic.h"

namespace ortrain::capi {
namespace {

// The API versions from which on OrtCustomOp has these members.
constexpr uint32_t kOptionalSince = 8, kVariadicSince = 14, kStatusSince = 16, kShapesSince = 17;

using Characteristic = OrtCustomOpInputOutputCharacteristic;

Characteristic input_kind(const OrtCustomOp& op, size_t i) {
  return op.version >= kOptionalSince && op.GetInputCharacteristic ? op.GetInputCharacteristic(&op, i)
                                                                   : INPUT_OUTPUT_REQUIRED;
}
Characteristic output_kind(const OrtCustomOp& op, size_t o) {
  return op.version >= kOptionalSince && op.GetOutputCharacteristic ? op.GetOutputCharacteristic(&op, o)
                                                                    : INPUT_OUTPUT_REQUIRED;
}

// The parameter that value i of a node belongs to: a variadic one, which is the last, takes all that follow.
template <typename Kind>
std::optional<size_t> parameter_of(const OrtCustomOp& op, size_t i, size_t count, Kind kind) {
  if (i < count) return i;
  if (count > 0 && kind(op, count - 1) == INPUT_OUTPUT_VARIADIC) return count - 1;
  return std::nullopt;
}

DType input_type(const OrtCustomOp& op, size_t i) {
  const auto at = parameter_of(op, i, op.GetInputTypeCount(&op), input_kind);
  return at ? any_dtype_of(op.GetInputType(&op, *at)) : DType::kUndefined;
}
DType output_type(const OrtCustomOp& op, size_t o) {
  const auto at = parameter_of(op, o, op.GetOutputTypeCount(&op), output_kind);
  return at ? any_dtype_of(op.GetOutputType(&op, *at)) : DType::kUndefined;
}

// What is wrong with the number of inputs or outputs of a node; empty if nothing is.
template <typename Kind>
std::string count_fault(const OrtCustomOp& op, const std::vector<std::string>& names, size_t count,
                        const char* what, Kind kind, int (*arity)(const OrtCustomOp*)) {
  for (size_t i = 0; i < count; ++i) {
    const bool is_there = i < names.size() && !names[i].empty();
    if (kind(op, i) == INPUT_OUTPUT_REQUIRED && !is_there) return concat(what, " ", i, " is missing");
  }
  const bool is_variadic = count > 0 && kind(op, count - 1) == INPUT_OUTPUT_VARIADIC;
  if (!is_variadic)
    return names.size() > count ? concat("it has ", names.size(), " ", what, "s, expected at most ", count)
                                : "";
  const size_t given = names.size() >= count ? names.size() - count + 1 : 0;
  const auto least = static_cast<size_t>(std::max(0, op.version >= kVariadicSince && arity ? arity(&op) : 1));
  return given < least ? concat("it has ", given, " variadic ", what, "s, expected at least ", least) : "";
}

class ProgramNode : public CustomNode {
 public:
  ProgramNode(std::vector<const OrtCustomOp*> candidates, OrtKernelInfo info)
      : candidates_(std::move(candidates)), info_(std::move(info)) {}
  ~ProgramNode() override {
    if (kernel_ && op_->KernelDestroy) op_->KernelDestroy(kernel_);
  }
  ProgramNode(const ProgramNode&) = delete;
  ProgramNode& operator=(const ProgramNode&) = delete;

  void prepare(const CustomUse& use) override;
  void types(TypeContext& c) override;
  void run(DynamicContext& c) override;

 private:
  bool fits(const OrtCustomOp& op, const std::vector<DType>& inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DType wanted = input_type(op, i);
      if (wanted != DType::kUndefined && inputs[i] != DType::kUndefined && wanted != inputs[i]) return false;
    }
    return true;
  }
  const OrtCustomOp* choose(const std::vector<DType>& inputs) const {
    const auto found = std::find_if(candidates_.begin(), candidates_.end(),
                                    [&](const OrtCustomOp* op) { return fits(*op, inputs); });
    return found == candidates_.end() ? nullptr : *found;
  }
  // The type of output o where the operator takes any: that of its first input of any type.
  static DType free_type(const OrtCustomOp& op, const std::vector<DType>& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (input_type(op, i) == DType::kUndefined) return inputs[i];
    return DType::kUndefined;
  }

  std::vector<const OrtCustomOp*> candidates_;  // of that name, in different types
  OrtKernelInfo info_;
  const OrtCustomOp* op_ = nullptr;
  void* kernel_ = nullptr;
};

void ProgramNode::prepare(const CustomUse& use) {
  const std::string label = info_.node.label();
  std::vector<DType> inputs;
  for (const ValueInfo& input : use.inputs) inputs.push_back(input.dtype);
  op_ = choose(inputs);
  if (op_ == nullptr) {
    const OrtCustomOp& first = *candidates_.front();
    std::string wanted, found;
    for (size_t i = 0; i < inputs.size(); ++i) {
      wanted += concat(i ? ", " : "", to_string(input_type(first, i)));
      found += concat(i ? ", " : "", to_string(inputs[i]));
    }
    fail(ErrorCode::kInvalidGraph, label, ": its inputs have the types ", found, ", expected ", wanted);
  }
  const OrtCustomOp& op = *op_;
  for (const std::string& fault :
       {count_fault(op, info_.node.inputs, op.GetInputTypeCount(&op), "input", input_kind,
                    op.version >= kVariadicSince ? op.GetVariadicInputMinArity : nullptr),
        count_fault(op, info_.node.outputs, op.GetOutputTypeCount(&op), "output", output_kind,
                    op.version >= kVariadicSince ? op.GetVariadicOutputMinArity : nullptr)})
    require(fault.empty(), ErrorCode::kInvalidGraph, label, ": ", fault);
  info_.inputs = use.inputs;
  info_.outputs = use.outputs;
  for (size_t o = 0; o < info_.outputs.size(); ++o) {
    DType& type = info_.outputs[o].dtype;
    if (const DType stated = output_type(op, o); stated != DType::kUndefined) type = stated;
    if (type == DType::kUndefined) type = free_type(op, inputs);
  }
  info_.constants.clear();
  for (const Tensor* constant : use.constants)
    info_.constants.push_back(constant ? std::make_shared<OrtValue>(OrtValue{*constant}) : nullptr);
  const OrtApi* api = api_base()->GetApi(op.version);
  if (op.version >= kStatusSince && op.CreateKernelV2) {
    void* kernel = nullptr;
    if (OrtStatus* status = op.CreateKernelV2(&op, api, &info_, &kernel)) {
      const std::string why = GetErrorMessage(status);
      release(status);
      fail(ErrorCode::kRuntimeException, label, ": ", why);  // whatever its code, as in onnxruntime
    }
    kernel_ = kernel;
  } else {
    require(op.CreateKernel != nullptr, ErrorCode::kInvalidArgument, label,
            ": its operator has neither CreateKernel nor CreateKernelV2");
    kernel_ = op.CreateKernel(&op, api, &info_);
  }
}

void ProgramNode::types(TypeContext& c) {
  std::vector<DType> inputs;
  for (size_t i = 0; i < info_.node.inputs.size(); ++i) inputs.push_back(c.input(i).dtype);
  const OrtCustomOp* op = choose(inputs);
  if (op == nullptr) return;  // which prepare() reports
  OrtShapeInferContext context{c, info_.node, {}, {}, {}};
  context.stated.resize(info_.node.outputs.size());
  // Where the function fails, shapes are not known before the run, as in onnxruntime.
  if (op->version >= kShapesSince && op->InferOutputShapeFn) release(op->InferOutputShapeFn(op, &context));
  for (size_t o = 0; o < info_.node.outputs.size(); ++o) {
    if (!info_.node.has_output(o) || context.stated[o]) continue;
    DType type = output_type(*op, o);
    if (type == DType::kUndefined) type = free_type(*op, inputs);
    c.output(o, type, std::nullopt);
  }
}

void ProgramNode::run(DynamicContext& c) {
  const std::string label = c.node().label();
  for (size_t i = 0; i < info_.node.inputs.size(); ++i) {
    if (!c.has_input(i)) continue;
    const Tensor* tensor = c.value(i).tensor();
    const DType wanted = input_type(*op_, i);
    require(!tensor || wanted == DType::kUndefined || wanted == tensor->dtype(), ErrorCode::kInvalidArgument,
            label, ": input ", i, " has type ", to_string(tensor ? tensor->dtype() : DType::kUndefined),
            ", expected ", to_string(wanted));
  }
  OrtKernelContext context{c, info_, {}, {}, {}};
  context.inputs.resize(info_.node.inputs.size());
  context.outputs.resize(info_.node.outputs.size());
  if (op_->version >= kStatusSince && op_->KernelComputeV2)
    expect_ok(op_->KernelComputeV2(kernel_, &context), label);
  else
    op_->KernelCompute(kernel_, &context);
  for (size_t o = 0; o < context.outputs.size(); ++o)
    require(context.outputs[o] || !c.has_output(o), ErrorCode::kRuntimeException, label,
            ": the operator did not produce output ", o, " ('", info_.node.outputs[o], "')");
  finish_outputs(context);
}

// The version range of an operator, which older ones do not have.
bool is_of_version(const OrtCustomOp& op, int64_t opset) {
  if (op.version < kShapesSince) return true;
  const int64_t start = op.GetStartVersion ? op.GetStartVersion(&op) : 1;
  const int64_t end = op.GetEndVersion ? op.GetEndVersion(&op) : INT_MAX;
  return opset == 0 || (start <= opset && opset <= end);
}

ProgramOperators copy_of(const OrtSessionOptions& options) {
  const auto* known = static_cast<const ProgramOperators*>(options.value.custom_operators.get());
  return known ? *known : ProgramOperators();
}

using Register = OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, const OrtApiBase*);

void call_registration(Register registration, OrtSessionOptions* options, const std::string& of) {
  require(registration != nullptr, ErrorCode::kFail, of,
          " has no function RegisterCustomOps, with which a library registers its operators");
  expect_ok(registration(options, api_base()), of);
}

// The library and its function.
void* open_library(const char* path) {
  void* library = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, ErrorCode::kFail, "Failed to load library ", path, ": ", ::dlerror());
  return library;
}

void register_library(OrtSessionOptions* options, void* library, const char* path) {
  call_registration(reinterpret_cast<Register>(::dlsym(library, "RegisterCustomOps")), options,
                    concat("the library ", path));
}

}  // namespace

void expect_ok(OrtStatus* status, const std::string& what) {
  if (status == nullptr) return;
  const auto code = static_cast<ErrorCode>(GetErrorCode(status));
  const std::string message = GetErrorMessage(status);
  release(status);
  fail(code, what, ": ", message);
}

std::shared_ptr<CustomNode> ProgramOperators::find(const Node& node, int64_t opset) const {
  std::vector<const OrtCustomOp*> candidates;
  for (const OrtCustomOpDomain* domain : domains) {
    if (domain->name != node.domain && !(node.domain.empty() && domain->name == "ai.onnx")) continue;
    for (const OrtCustomOp* op : domain->operators)
      if (op->GetName(op) == node.op_type && is_of_version(*op, opset)) candidates.push_back(op);
  }
  if (candidates.empty()) return nullptr;
  OrtKernelInfo info;
  info.node = node;
  const OrtCustomOp& first = *candidates.front();
  if (first.version >= kShapesSince && first.GetStartVersion) info.since = first.GetStartVersion(&first);
  info.logger = logger;
  info.config = config;
  return std::make_shared<ProgramNode>(std::move(candidates), std::move(info));
}

void CreateCustomOpDomain(const char* domain, OrtCustomOpDomain** out) {
  *out = new OrtCustomOpDomain{domain, {}};
}

void CustomOpDomain_Add(OrtCustomOpDomain* custom_op_domain, const OrtCustomOp* op) {
  require(op->version >= 1 && op->version <= ORT_API_VERSION, ErrorCode::kInvalidArgument,
          "the operator has version ", op->version, ", expected 1 to ", ORT_API_VERSION);
  require(op->GetName && op->GetInputTypeCount && op->GetInputType && op->GetOutputTypeCount &&
              op->GetOutputType && op->GetName(op),
          ErrorCode::kInvalidArgument, "the operator lacks its name, or the types of its inputs or outputs");
  require(op->KernelCompute || (op->version >= kStatusSince && op->KernelComputeV2),
          ErrorCode::kInvalidArgument, "the operator ", op->GetName(op),
          " has neither KernelCompute nor KernelComputeV2");
  const char* provider = op->GetExecutionProviderType ? op->GetExecutionProviderType(op) : nullptr;
  require(provider == nullptr || *provider == '\0' ||
              std::find(provider_names().begin(), provider_names().end(), provider) != provider_names().end(),
          ErrorCode::kInvalidArgument, "the operator ", op->GetName(op), " is for ", provider ? provider : "",
          ", which is not available; available: CPUExecutionProvider");
  custom_op_domain->operators.push_back(op);
}

void AddCustomOpDomain(OrtSessionOptions* options, OrtCustomOpDomain* custom_op_domain) {
  ProgramOperators operators = copy_of(*options);
  operators.domains.push_back(custom_op_domain);
  options->value.custom_operators = std::make_shared<const ProgramOperators>(std::move(operators));
}

void RegisterCustomOpsLibrary(OrtSessionOptions* options, const char* library_path, void** library_handle) {
  void* library = open_library(library_path);
  try {
    register_library(options, library, library_path);
  } catch (...) {
    ::dlclose(library);
    throw;
  }
  *library_handle = library;  // the caller closes it
}

void RegisterCustomOpsLibrary_V2(OrtSessionOptions* options, const ORTCHAR_T* library_name) {
  const std::shared_ptr<void> library(open_library(library_name), ::dlclose);
  register_library(options, library.get(), library_name);
  ProgramOperators operators = copy_of(*options);
  operators.libraries.push_back(library);
  options->value.custom_operators = std::make_shared<const ProgramOperators>(std::move(operators));
}

void RegisterCustomOpsUsingFunction(OrtSessionOptions* options, const char* registration_func_name) {
  auto* function = reinterpret_cast<Register>(::dlsym(RTLD_DEFAULT, registration_func_name));
  require(function != nullptr, ErrorCode::kFail, "the process has no function ", registration_func_name);
  expect_ok(function(options, api_base()), registration_func_name);
}

void EnableOrtCustomOps(OrtSessionOptions*) {
  fail(ErrorCode::kFail,
       "onnxruntime-extensions is not part of this library; register its library with "
       "RegisterCustomOpsLibrary_V2");
}

void RegisterGradient(const char* domain, const char* op_type, const void* gradient_model,
                      size_t gradient_model_length) {
  Model gradient;
  if (gradient_model_length > 0)
    gradient = read_model(gradient_model, gradient_model_length,
                          concat("gradient of ", domain, *domain ? "." : "", op_type));
  register_gradient(domain, op_type, gradient);
}

}  // namespace ortrain::capi
