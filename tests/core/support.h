// Shared by several tests of the core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "runtime/error.h"

namespace ortrain::test {

inline const std::filesystem::path kFixtures = std::filesystem::path(TEST_DATA) / "fixtures";

inline const std::vector<std::string> kCases = {"mlp_adamw",     "mlp_sgd_sched", "lenet_adamw",  "resnet_bn",
                                                "resnet_frozen", "encoder",       "regressor_mse"};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline void put(const std::filesystem::path& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  REQUIRE(file);
}

// A folder that is removed with the test.
class Folder {
 public:
  Folder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() / ("ortrain-test-" + std::to_string(random()));
    REQUIRE(std::filesystem::create_directory(path_));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  // The names of its entries, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::filesystem::path path_;
};

// The error that `step` throws; the test fails if it throws none.
inline Error error_of(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    return error;
  }
  FAIL("expected an error");
  throw std::logic_error("unreachable");
}

// Checks that `step` fails with `code` and a message that has all the parts.
inline void check_error(ErrorCode code, const std::vector<std::string>& parts,
                        const std::function<void()>& step) {
  const Error error = error_of(step);
  INFO(error.message());
  CHECK(static_cast<int>(error.code()) == static_cast<int>(code));
  for (const std::string& part : parts) {
    INFO("the message should have: " << part);
    CHECK(error.message().find(part) != std::string::npos);
  }
}

// Runs `use` with every truncation of `content` and with many damaged copies. It may only fail with an Error.
inline void damage(const std::string& content, int flips,
                   const std::function<void(const std::string&)>& use) {
  int accepted = 0, refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      use(bytes);
      ++accepted;
    } catch (const Error& error) {
      ++refused;
      if (error.message().empty()) FAIL("an error without a message");
    }
  };
  for (size_t length = 0; length < content.size(); ++length) attempt(content.substr(0, length));
  const int cut_refused = refused;
  std::mt19937 random(20);
  for (int i = 0; i < flips; ++i) {
    std::string bytes = content;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int k = 0; k < changes; ++k) {
      char& byte = bytes[random() % bytes.size()];
      byte = random() % 2 ? static_cast<char>(byte ^ (1 << random() % 8)) : static_cast<char>(random());
    }
    attempt(bytes);
  }
  // Most truncations must be noticed, and some damage cannot be (in weights and names), or the test tests
  // nothing.
  CHECK(cut_refused > static_cast<int>(content.size()) / 2);
  CHECK(accepted > 0);
}

}  // namespace ortrain::test
