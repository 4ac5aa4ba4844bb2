#include "session/schedule/rule.h"

namespace ortrain {
namespace {

ORTRAIN_SCHEDULE(Constant,
                 {.name = "constant", .formula = "f = 1", .source = "", .factor = [](const ScheduleStep&) {
                    return 1.0;
                  }});

}  // namespace
}  // namespace ortrain
