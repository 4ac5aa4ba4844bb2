// What differs between systems (runtime/system.h), and the processors that control groups grant.
#include "runtime/system.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "runtime/control_group.h"
#include "support.h"

namespace ortrain::test {
namespace {

namespace fs = std::filesystem;

void put_file(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  put(path, text);
}

}  // namespace

TEST_CASE("control groups: the least share of a group and those around it, rounded up") {
  const Folder folder;
  const fs::path membership = folder.path() / "cgroup", root = folder.path() / "groups";
  const auto granted = [&] { return granted_processors(membership, root); };
  CHECK(granted() == 0);  // no control groups
  put_file(membership, "0::/outer/inner\n");
  CHECK(granted() == 0);
  put_file(root / "outer/inner/cpu.max", "max 100000\n");
  CHECK(granted() == 0);
  put_file(root / "outer/cpu.max", "350000 100000\n");
  CHECK(granted() == 4);
  put_file(root / "outer/inner/cpu.max", "150000 100000\n");
  CHECK(granted() == 2);
  put_file(root / "outer/cpu.max", "50000 100000\n");
  CHECK(granted() == 1);
  // In a container, the path is that of the machine, of which the container sees its own part as the root.
  put_file(membership, "0::/elsewhere\n");
  CHECK(granted() == 0);
  put_file(root / "cpu.max", "300000 100000\n");
  CHECK(granted() == 3);
}

TEST_CASE("control groups of the first version: the group of the controller for processors") {
  const Folder folder;
  const fs::path membership = folder.path() / "cgroup", root = folder.path() / "groups";
  put_file(membership, "5:memory:/box\n4:cpu,cpuacct:/box\n");
  put_file(root / "cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  put_file(root / "cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  CHECK(granted_processors(membership, root) == 0);
  put_file(root / "cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n");
  CHECK(granted_processors(membership, root) == 3);
  put_file(root / "memory/box/cpu.cfs_quota_us", "100000\n");
  put_file(root / "memory/box/cpu.cfs_period_us", "100000\n");
  CHECK(granted_processors(membership, root) == 3);
}

TEST_CASE("a file is created once, written, read at any place, and mapped") {
  const Folder folder;
  const fs::path path = folder.path() / "file";
  system::File file = system::File::create(path);
  REQUIRE(file);
  CHECK(!system::File::create(path));
  CHECK(system::failure() == system::Failure::kExists);
  CHECK(file.write("0123456789", 10));
  CHECK(file.sync());
  CHECK(file.has_name());

  const system::File opened = system::File::open(path);
  REQUIRE(opened);
  const auto info = opened.info();
  REQUIRE(info.has_value());
  CHECK(info->kind == system::FileInfo::kFile);
  CHECK(info->bytes == 10);
  char part[4] = {};
  CHECK(opened.read(part, 3, 4) == 3);
  CHECK(std::string(part) == "456");
  CHECK(opened.read(part, 3, 9) == 1);
  CHECK(opened.read(part, 3, 10) == 0);
  const std::byte* mapped = opened.map(10);
  REQUIRE(mapped != nullptr);
  system::prefetch(mapped, 10);
  CHECK(std::memcmp(mapped, "0123456789", 10) == 0);
  system::unmap(mapped, 10);

  CHECK(!system::File::open(folder.path() / "none"));
  CHECK(system::failure() == system::Failure::kNotFound);
  CHECK(!system::reason().empty());
  CHECK(system::info(folder.path())->kind == system::FileInfo::kFolder);
  CHECK(!system::info(folder.path() / "none"));
}

TEST_CASE("files that are locked are not removed; those that nobody locks are") {
  const Folder folder;
  const fs::path path = folder.path() / "file";
  system::File file = system::File::create(path);
  REQUIRE(file.lock() == system::File::Lock::kTaken);
  system::File second = system::File::open(path);
  CHECK(second.lock() == system::File::Lock::kHeld);
  system::remove_unlocked(path);
  CHECK(fs::exists(path));
  file.close();
  second.close();  // Windows may keep a file until it is closed
  system::remove_unlocked(path);
  CHECK(!fs::exists(path));
}

TEST_CASE("memory is aligned, and no smaller than asked for") {
  void* block = system::allocate_aligned(4096, 8192);
  REQUIRE(block != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(block) % 4096 == 0);
  CHECK(system::usable_bytes(block) >= 8192);
  std::memset(block, 1, 8192);
  system::free_aligned(block);
  CHECK(system::machine_memory() > size_t{64} << 20);
}

TEST_CASE("a thread sleeps until its word has changed") {
  std::atomic<uint32_t> word{1};
  std::thread other([&] { system::sleep_while(word, 1); });
  word = 2;
  system::wake(word);
  other.join();
  CHECK(system::processors() >= 1);
}

TEST_CASE("letters of other languages have cases too") {
  CHECK(system::lower_case(0xC4) == 0xE4);    // Ä
  CHECK(system::upper_case(0x3C9) == 0x3A9);  // ω
  CHECK(system::upper_case('!') == '!');
}

}  // namespace ortrain::test
