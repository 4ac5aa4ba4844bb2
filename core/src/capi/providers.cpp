// Execution providers that this library does not have: every call that asks for one fails with an error that
// names the available ones. Those of the providers in spec/absent_providers.yaml are generated.
#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {

void reject_provider(const char* provider) {
  std::string list;
  for (const std::string& name : provider_names()) list += (list.empty() ? "" : ", ") + name;
  fail(ErrorCode::kFail, provider, " execution provider is not enabled in this build; available: ", list);
}

void GetExecutionProviderApi(const char* provider_name, uint32_t, const void**) {
  fail(ErrorCode::kInvalidArgument, "the execution provider ", provider_name,
       " has no table of calls; available: CPUExecutionProvider, which has none");
}

}  // namespace ortrain::capi
