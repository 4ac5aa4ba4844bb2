#include "op/operator.h"
#include "passes/pass.h"
#include "runtime/registry.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

TEST_CASE("what is entered under one key is found") {
  Registry<std::string, int> registry;
  registry.add("one", 1, "item 'one'", SourcePlace::here());
  registry.add("two", 2, "item 'two'", SourcePlace::here());
  REQUIRE(registry.find("two"));
  CHECK(*registry.find("two") == 2);
  CHECK(!registry.find("three"));
  int sum = 0;
  registry.each([&](int item) { sum += item; });
  CHECK(sum == 3);
}

TEST_CASE("two items under one key are refused by name, with both places") {
  Registry<std::string, int> registry;
  registry.add("one", 1, "item 'one'", SourcePlace::here());
  const auto first = std::to_string(__LINE__ - 1);
  registry.add("two", 2, "item 'two'", SourcePlace::here());
  registry.add("one", 3, "item 'one'", SourcePlace::here());
  const auto second = std::to_string(__LINE__ - 1);
  for (const auto& read : {std::function<void()>([&] { registry.find("two"); }),
                           std::function<void()>([&] { registry.each([](int) {}); })}) {
    std::string message;
    try {
      read();
    } catch (const Error& error) {
      message = error.message();
    }
    INFO(message);
    CHECK(message.find("item 'one' in ") != std::string::npos);
    CHECK(message.find("test_registry.cpp:" + first) != std::string::npos);
    CHECK(message.find("test_registry.cpp:" + second) != std::string::npos);
    CHECK(message.find("item 'two'") == std::string::npos);
  }
}

TEST_CASE("no operator and no pass of this build is registered twice") {
  CHECK(all_operators().size() > 300);
  CHECK(pass_names(PassPhase::kSession).size() > 5);
  CHECK(find_operator("", "Relu") != nullptr);
}
