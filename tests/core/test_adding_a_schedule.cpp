// A learning rate schedule is added in one place: this file declares one, and schedules and the list of the
// library have it.
#include <algorithm>

#include "catch.h"
#include "session/schedule/schedule.h"

namespace ortrain {
namespace {

ORTRAIN_SCHEDULE(Halving, {.name = "halving",
                           .formula = "f = 2^-floor(t / every)",
                           .source = "this test",
                           .settings = {{"every", kRequired, "steps from one halving to the next", 1}},
                           .factor = [](const ScheduleStep& s) {
                             return std::exp2(-std::floor(s.step / s["every"]));
                           }});

}  // namespace

TEST_CASE("A schedule that one file declares gives rates, with the warmup of all schedules") {
  const Schedule schedule("halving", "every=2, warmup_steps=4");
  const std::vector<float> expected{0, 2, 4, 6, 8, 8, 4, 4, 2};
  for (size_t step = 0; step < expected.size(); ++step)
    CHECK(schedule.rate(8, static_cast<int64_t>(step)) == expected[step]);
  CHECK_THROWS_WITH(Schedule("halving", ""), Catch::Contains("every"));
  CHECK_THROWS_WITH(Schedule("halving", "every=0"), Catch::Contains("every"));
  const std::vector<const ScheduleRule*> all = all_schedules();
  CHECK(std::count(all.begin(), all.end(), find_schedule("halving")) == 1);
}

}  // namespace ortrain
