// The objects behind the handles of custom operators; a part of capi/handles.h, which it needs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "onnxruntime_c_api.h"
#include "op/custom.h"
#include "session/inference_session.h"

// Where messages go: that of an environment, or of the options of a session.
struct OrtLogger {
  OrtLoggingLevel level;
  std::string id;
  OrtLoggingFunction function;  // null: stderr
  void* parameter;
};

struct OrtCustomOpDomain {
  std::string name;
  std::vector<const OrtCustomOp*> operators;
};

struct OrtOpAttr {
  std::string name;
  ortrain::Attribute value;
};

// The information that a custom operator gets about its node.
struct OrtKernelInfo {
  ortrain::Node node;
  int64_t since = 1;
  std::vector<ortrain::ValueInfo> inputs, outputs;
  std::vector<std::shared_ptr<OrtValue>> constants;  // null where an input is not an initializer
  std::shared_ptr<const OrtLogger> logger;
  std::map<std::string, std::string> config;
};

struct OrtKernelContext {
  ortrain::DynamicContext& run;
  const OrtKernelInfo& info;
  std::vector<std::shared_ptr<OrtValue>> inputs, outputs;  // made when asked for
  std::vector<std::shared_ptr<void>> scratch;
};

struct OrtShapeInferContext {
  ortrain::TypeContext& types;
  const ortrain::Node& node;  // as the model has it
  mutable std::vector<std::unique_ptr<OrtTensorTypeAndShapeInfo>> inputs;
  mutable std::vector<std::unique_ptr<OrtOpAttr>> attributes;
  mutable std::vector<bool> stated;  // of the outputs
};

// One operator of the library, for a custom operator to run.
struct OrtOp {
  std::string label;
  ortrain::InferenceSession session;
};

namespace ortrain::capi {

// The custom operators of a session's options.
class ProgramOperators : public CustomOperators {
 public:
  std::vector<const OrtCustomOpDomain*> domains;
  std::vector<std::shared_ptr<void>> libraries;  // that they come from
  std::shared_ptr<const OrtLogger> logger;
  std::map<std::string, std::string> config;  // of the session

  std::shared_ptr<CustomNode> find(const Node& node, int64_t opset) const override;
  // Throws kFail for operators that no session can take, whether a model has nodes of them or not.
  void check() const;
};

void log(const OrtLogger& logger, OrtLoggingLevel severity, const char* place, const std::string& message);

}  // namespace ortrain::capi
