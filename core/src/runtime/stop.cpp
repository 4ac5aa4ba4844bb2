#include "runtime/stop.h"

namespace ortrain {
namespace {

thread_local const std::function<void()>* current = nullptr;

}  // namespace

StopScope::StopScope(const std::function<void()>* check) : before_(current) {
  current = check && *check ? check : nullptr;
}
StopScope::~StopScope() { current = before_; }

void check_stop() {
  if (current) (*current)();
}

}  // namespace ortrain
