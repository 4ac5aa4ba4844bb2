// Files that are replaced while they are in use. Windows does that on some file systems alone
// (tests/windows).
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.h"
#include "runtime/system.h"
#include "support.h"

namespace ortrain::test {

TEST_CASE("a file is replaced while it is open and mapped, and what was mapped stays") {
  const Folder folder;
  put(folder.path() / "old", "old");
  put(folder.path() / "new", "new");
  const system::File open = system::File::open(folder.path() / "old");
  const std::byte* mapped = open.map(3);
  REQUIRE(mapped != nullptr);
  CHECK(system::replace(folder.path() / "new", folder.path() / "old"));
  CHECK(system::sync_folder(folder.path()));
  CHECK(content_of(folder.path() / "old") == "new");
  CHECK(std::memcmp(mapped, "old", 3) == 0);
  system::unmap(mapped, 3);
  std::vector<std::string> names;
  system::for_each_name(folder.path(), [&](std::string_view name) {
    if (name != "." && name != "..") names.emplace_back(name);
  });
  CHECK(names == std::vector<std::string>{"old"});
}

}  // namespace ortrain::test
