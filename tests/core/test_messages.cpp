// Messages with numbers of things.
#include <string>
#include <utility>

#include "catch.h"
#include "runtime/error.h"

using ortrain::agreeing;
using ortrain::concat;
using ortrain::counted;

TEST_CASE("a number has its noun in the singular or the plural") {
  CHECK(concat("expected ", counted(1, "value"), ", found ", counted(0, "value")) ==
        "expected 1 value, found 0 values");
  CHECK(concat(counted(size_t{2}, "optimizer step")) == "2 optimizer steps");
  CHECK(concat(counted(-1, "byte"), " ", 'x') == "-1 bytes x");
  for (const auto& [one, several] : {std::pair{"axis", "axes"},
                                     {"index", "indices"},
                                     {"matrix", "matrices"},
                                     {"batch", "batches"},
                                     {"class", "classes"},
                                     {"entry", "entries"},
                                     {"key", "keys"},
                                     {"box", "boxes"},
                                     {"bias", "biases"}}) {
    CHECK(concat(counted(1, one)) == concat("1 ", one));
    CHECK(concat(counted(3, one)) == concat("3 ", several));
  }
  CHECK(concat(counted(1, "row"), agreeing(1, " is", " are")) == "1 row is");
  CHECK(concat(counted(2, "row"), agreeing(2, " is", " are")) == "2 rows are");
}
