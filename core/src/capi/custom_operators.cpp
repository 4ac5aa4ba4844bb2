// Custom operators of the program: domains, libraries of them, and their nodes.
#include <algorithm>
#include <climits>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "graph/onnx_io.h"
#include "op/dynamic.h"
#include "runtime/path.h"
#include "runtime/system.h"

namespace ortrain::capi {
namespace {

// The API versions that added these members to OrtCustomOp.
constexpr uint32_t kOptionalSince = 8, kVariadicSince = 14, kStatusSince = 16, kShapesSince = 17;

// One side of an operator's signature, its inputs or its outputs.
struct Side {
  const char* what;
  size_t (*count)(const OrtCustomOp*);
  ONNXTensorElementDataType (*type)(const OrtCustomOp*, size_t);
  OrtCustomOpInputOutputCharacteristic (*kind)(const OrtCustomOp*, size_t);
  int (*least)(const OrtCustomOp*);  // number of values of a variadic parameter
  int (*same)(const OrtCustomOp*);   // whether these have one type
};

Side inputs_of(const OrtCustomOp& op) {
  const bool has_kinds = op.version >= kOptionalSince, has_variadic = op.version >= kVariadicSince;
  return {"input",
          op.GetInputTypeCount,
          op.GetInputType,
          has_kinds ? op.GetInputCharacteristic : nullptr,
          has_variadic ? op.GetVariadicInputMinArity : nullptr,
          has_variadic ? op.GetVariadicInputHomogeneity : nullptr};
}
Side outputs_of(const OrtCustomOp& op) {
  const bool has_kinds = op.version >= kOptionalSince, has_variadic = op.version >= kVariadicSince;
  return {"output",
          op.GetOutputTypeCount,
          op.GetOutputType,
          has_kinds ? op.GetOutputCharacteristic : nullptr,
          has_variadic ? op.GetVariadicOutputMinArity : nullptr,
          has_variadic ? op.GetVariadicOutputHomogeneity : nullptr};
}

// A parameter of an operator; a variadic one takes several values of a node.
struct Parameter {
  DType type = DType::kUndefined;  // undefined: any
  OrtCustomOpInputOutputCharacteristic kind = INPUT_OUTPUT_REQUIRED;
  size_t least = 1;                                // of a variadic parameter
  bool same = true;                                // of a variadic parameter
  bool operator==(const Parameter& other) const {  // apart from types, in which kernels may differ
    return kind == other.kind && least == other.least && same == other.same;
  }
};

std::vector<Parameter> parameters_of(const OrtCustomOp& op, const Side& side) {
  std::vector<Parameter> all(side.count(&op));
  for (size_t i = 0; i < all.size(); ++i) {
    Parameter& one = all[i];
    one.type = any_dtype_of(side.type(&op, i));
    if (side.kind) one.kind = side.kind(&op, i);
    if (one.kind != INPUT_OUTPUT_VARIADIC) continue;
    if (side.least) one.least = static_cast<size_t>(std::max(0, side.least(&op)));
    if (side.same) one.same = side.same(&op) != 0;
  }
  return all;
}

// The parameter that value i of a node belongs to; null if there is none.
const Parameter* parameter_at(const std::vector<Parameter>& all, size_t i) {
  if (i < all.size()) return &all[i];
  return !all.empty() && all.back().kind == INPUT_OUTPUT_VARIADIC ? &all.back() : nullptr;
}
DType type_at(const std::vector<Parameter>& all, size_t i) {
  const Parameter* parameter = parameter_at(all, i);
  return parameter ? parameter->type : DType::kUndefined;
}

DType input_type(const OrtCustomOp& op, size_t i) { return type_at(parameters_of(op, inputs_of(op)), i); }

// Throws unless a node has as many inputs, or outputs, as its operator takes.
void check_count(const std::string& label, const std::vector<Parameter>& all,
                 const std::vector<std::string>& names, const char* what) {
  const bool is_variadic = !all.empty() && all.back().kind == INPUT_OUTPUT_VARIADIC;
  const size_t alone = all.size() - is_variadic;
  for (size_t i = 0; i < alone; ++i)
    require(all[i].kind != INPUT_OUTPUT_REQUIRED || (i < names.size() && !names[i].empty()),
            ErrorCode::kInvalidGraph, label, ": ", what, " ", i, " is missing, which its operator requires");
  if (!is_variadic) {
    require(names.size() <= all.size(), ErrorCode::kInvalidGraph, label, ": it has ", names.size(), " ", what,
            "s, expected at most ", all.size());
    return;
  }
  const size_t given = names.size() - std::min(names.size(), alone);
  require(given >= all.back().least, ErrorCode::kInvalidGraph, label, ": it has ", given, " variadic ", what,
          "s, expected at least ", all.back().least);
  for (size_t i = alone; i < names.size(); ++i)
    require(!names[i].empty(), ErrorCode::kFail, label, ": variadic ", what, " ", i,
            " is missing, but only optional ones can be left out");
}

// Throws if values of a homogeneous variadic parameter have different types.
void check_homogeneous(const std::string& label, const std::vector<Parameter>& all,
                       const std::vector<ValueInfo>& values, const char* what) {
  if (all.empty() || all.back().kind != INPUT_OUTPUT_VARIADIC || !all.back().same) return;
  const ValueInfo* first = nullptr;
  for (size_t i = all.size() - 1; i < values.size(); ++i) {
    if (values[i].dtype == DType::kUndefined) continue;
    if (first == nullptr) first = &values[i];
    require(values[i].dtype == first->dtype, ErrorCode::kFail, label, ": its variadic ", what, "s '",
            first->name, "' and '", values[i].name, "' have the types ", to_string(first->dtype), " and ",
            to_string(values[i].dtype), ", expected one type for all");
  }
}

// Throws unless two kernels of one operator have the same signature apart from types.
void check_same_signature(const std::string& name, const OrtCustomOp& one, const OrtCustomOp& other) {
  for (const auto side : {inputs_of, outputs_of}) {
    const auto a = parameters_of(one, side(one)), b = parameters_of(other, side(other));
    const char* what = side(one).what;
    require(a.size() == b.size(), ErrorCode::kFail, "the custom operator ", name,
            " was added with kernels of ", a.size(), " and of ", b.size(), " ", what,
            "s; kernels of one operator may differ only in their types");
    for (size_t i = 0; i < a.size(); ++i)
      require(a[i] == b[i], ErrorCode::kFail, "the custom operator ", name,
              ": its kernels differ in whether ", what, " ", i,
              " is optional or variadic, in the minimum number of its values or in whether these must have ",
              "the same type; kernels of one operator may differ only in their types");
  }
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
  // Finds the types of outputs that depend on types of inputs which only a run shows.
  void find_types(DynamicContext& c);
  bool fits(const OrtCustomOp& op, const std::vector<DType>& inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const DType wanted = input_type(op, i);
      if (wanted != DType::kUndefined && inputs[i] != DType::kUndefined && wanted != inputs[i]) return false;
    }
    return true;
  }
  // Explains why no kernel takes inputs of these types.
  std::string mismatch(const std::vector<DType>& inputs) const {
    const auto list = [&](auto&& type_of) {
      std::string text;
      for (size_t i = 0; i < inputs.size(); ++i) text += concat(i ? ", " : "", to_string(type_of(i)));
      return text;
    };
    std::string wanted;
    for (const OrtCustomOp* op : candidates_)
      wanted += (wanted.empty() ? "" : "; or ") + list([&](size_t i) { return input_type(*op, i); });
    return concat("its inputs have the types ", list([&](size_t i) { return inputs[i]; }), ", expected ",
                  wanted);
  }
  const OrtCustomOp* choose(const std::vector<DType>& inputs) const {
    const auto found = std::find_if(candidates_.begin(), candidates_.end(),
                                    [&](const OrtCustomOp* op) { return fits(*op, inputs); });
    return found == candidates_.end() ? nullptr : *found;
  }
  // The type of output o, as far as the operator states it: an output of any type has that of the first
  // input of any type. Undefined where values of a variadic parameter may differ in their types.
  static DType stated_type(const OrtCustomOp& op, size_t o, const std::vector<DType>& inputs) {
    const std::vector<Parameter> results = parameters_of(op, outputs_of(op));
    const Parameter* result = parameter_at(results, o);
    if (result == nullptr || result->type != DType::kUndefined) return type_at(results, o);
    if (result->kind == INPUT_OUTPUT_VARIADIC && !result->same) return DType::kUndefined;
    const std::vector<Parameter> all = parameters_of(op, inputs_of(op));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Parameter* from = parameter_at(all, i);
      if (from == nullptr || from->type != DType::kUndefined) continue;
      if (from->kind != INPUT_OUTPUT_VARIADIC || from->same) return inputs[i];
    }
    return DType::kUndefined;
  }

  std::vector<const OrtCustomOp*> candidates_;  // of that name, in different types
  OrtKernelInfo info_;
  const OrtCustomOp* op_ = nullptr;
  std::vector<Parameter> taken_;  // its inputs
  bool all_types_known_ = false;  // before a run
  void* kernel_ = nullptr;
};

void ProgramNode::prepare(const CustomUse& use) {
  const std::string label = info_.node.label();
  const OrtCustomOp& first = *candidates_.front();
  check_count(label, parameters_of(first, inputs_of(first)), info_.node.inputs, "input");
  check_count(label, parameters_of(first, outputs_of(first)), info_.node.outputs, "output");
  std::vector<DType> inputs;
  for (const ValueInfo& input : use.inputs) inputs.push_back(input.dtype);
  op_ = choose(inputs);
  if (op_ == nullptr) fail(ErrorCode::kInvalidGraph, label, ": ", mismatch(inputs));
  const OrtCustomOp& op = *op_;
  const std::vector<Parameter> results = parameters_of(op, outputs_of(op));
  taken_ = parameters_of(op, inputs_of(op));
  check_homogeneous(label, taken_, use.inputs, "input");
  check_homogeneous(label, results, use.outputs, "output");
  info_.inputs = use.inputs;
  info_.outputs = use.outputs;
  all_types_known_ = std::all_of(use.inputs.begin(), use.inputs.end(), [](const ValueInfo& input) {
    return input.name.empty() || input.dtype != DType::kUndefined;
  });
  for (size_t o = 0; o < info_.outputs.size(); ++o) {
    ValueInfo& output = info_.outputs[o];
    if (output.name.empty()) continue;
    const DType stated = type_at(results, o);
    require(stated == DType::kUndefined || output.dtype == DType::kUndefined || output.dtype == stated,
            ErrorCode::kFail, label, ": the model declares its output '", output.name, "' as ",
            to_string(output.dtype), ", but its operator produces ", to_string(stated));
    if (output.dtype == DType::kUndefined) output.dtype = stated_type(op, o, inputs);
    // Inside of subgraphs, types of inputs may be known only in a run.
    require(output.dtype != DType::kUndefined || !all_types_known_, ErrorCode::kFail, label,
            ": the type of its output '", output.name,
            "' is not known; expected an operator that states it (OrtCustomOp::GetOutputType or "
            "InferOutputShapeFn), or a model that declares it");
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
    c.output(o, stated_type(*op, o, inputs), std::nullopt);
  }
}

void ProgramNode::run(DynamicContext& c) {
  const std::string label = c.node().label();
  for (size_t i = 0; i < info_.node.inputs.size(); ++i) {
    if (!c.has_input(i)) continue;
    const Tensor* tensor = c.value(i).tensor();
    const DType wanted = type_at(taken_, i);
    require(!tensor || wanted == DType::kUndefined || wanted == tensor->dtype(), ErrorCode::kInvalidArgument,
            label, ": input ", i, " has type ", to_string(tensor ? tensor->dtype() : DType::kUndefined),
            ", expected ", to_string(wanted));
  }
  if (!all_types_known_) find_types(c);
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

void ProgramNode::find_types(DynamicContext& c) {
  std::vector<DType> types(info_.node.inputs.size(), DType::kUndefined);
  for (size_t i = 0; i < types.size(); ++i)
    if (c.has_input(i) && c.value(i).tensor()) types[i] = c.value(i).tensor()->dtype();
  for (size_t o = 0; o < info_.outputs.size(); ++o)
    if (info_.outputs[o].dtype == DType::kUndefined) info_.outputs[o].dtype = stated_type(*op_, o, types);
}

// Whether an operator exists in an operator set. Operators of older API versions exist in all of them.
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

// Opens a library of operators.
void* open_library(const std::filesystem::path& path) {
  std::string why;
  void* library = system::open_library(path, why);
  require(library != nullptr, ErrorCode::kFail, "Failed to load library ", to_utf8(path), ": ", why);
  return library;
}

void register_library(OrtSessionOptions* options, void* library, const std::filesystem::path& path) {
  call_registration(reinterpret_cast<Register>(system::symbol(library, "RegisterCustomOps")), options,
                    concat("the library ", to_utf8(path)));
}

}  // namespace

void ProgramOperators::check() const {
  for (const OrtCustomOpDomain* domain : domains) {
    std::map<std::string, const OrtCustomOp*> first;
    for (const OrtCustomOp* op : domain->operators) {
      const std::string name = concat(domain->name, domain->name.empty() ? "" : ".", op->GetName(op));
      const auto [known, fresh] = first.emplace(name, op);
      if (!fresh) check_same_signature(name, *known->second, *op);
      for (const auto side : {inputs_of, outputs_of}) {
        const std::vector<Parameter> all = parameters_of(*op, side(*op));
        for (size_t i = 0; i + 1 < all.size(); ++i)
          require(all[i].kind != INPUT_OUTPUT_VARIADIC, ErrorCode::kFail, "the custom operator ", name, ": ",
                  side(*op).what, " ", i, " is variadic, but only the last one may be");
      }
    }
  }
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
  const std::filesystem::path path = from_utf8(library_path);
  void* library = open_library(path);
  try {
    register_library(options, library, path);
  } catch (...) {
    system::close_library(library);
    throw;
  }
  *library_handle = library;  // the caller closes it
}

void RegisterCustomOpsLibrary_V2(OrtSessionOptions* options, const ORTCHAR_T* library_name) {
  const std::shared_ptr<void> library(open_library(library_name), system::close_library);
  register_library(options, library.get(), library_name);
  ProgramOperators operators = copy_of(*options);
  operators.libraries.push_back(library);
  options->value.custom_operators = std::make_shared<const ProgramOperators>(std::move(operators));
}

void RegisterCustomOpsUsingFunction(OrtSessionOptions* options, const char* registration_func_name) {
  auto* function = reinterpret_cast<Register>(system::symbol_of_program(registration_func_name));
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
