// Shared by the tests of the C and C++ interfaces.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../core/catch.h"
#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"

namespace capi_test {

inline const std::filesystem::path kMlp = std::filesystem::path(TEST_DATA) / "fixtures" / "mlp_adamw";

inline const OrtApi& ort() { return *OrtGetApiBase()->GetApi(ORT_API_VERSION); }
inline const OrtTrainingApi& training() { return *ort().GetTrainingApi(ORT_API_VERSION); }

inline std::vector<char> bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A separate folder for a test, removed afterwards.
class Scratch {
 public:
  Scratch() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() / ("ortrain-test-" + std::to_string(random()));
    REQUIRE(std::filesystem::create_directory(path_));
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace capi_test
