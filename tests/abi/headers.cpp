// Every header compiles as C++14, and its definitions work there. Prints what is wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cpu_provider_factory.h"
#include "onnxruntime_c_api.h"
#include "onnxruntime_cxx_api.h"
#include "onnxruntime_float16.h"
#include "onnxruntime_run_options_config_keys.h"
#include "onnxruntime_session_options_config_keys.h"
#include "onnxruntime_training_c_api.h"
#include "onnxruntime_training_cxx_api.h"
#include "ortrain_c_api.h"

#define CHECK(condition)                                  \
  do {                                                    \
    if (!(condition)) {                                   \
      std::printf("line %d: %s\n", __LINE__, #condition); \
      std::exit(1);                                       \
    }                                                     \
  } while (0)

// All members, also those that no program here calls.
template struct Ort::detail::MemoryInfoCalls<Ort::detail::Base<OrtMemoryInfo>>;
template struct Ort::detail::MemoryInfoCalls<Ort::detail::Unowned<const OrtMemoryInfo>>;
template struct Ort::detail::TensorTypeAndShapeInfoCalls<Ort::detail::Base<OrtTensorTypeAndShapeInfo>>;
template struct Ort::detail::TensorTypeAndShapeInfoCalls<
    Ort::detail::Unowned<const OrtTensorTypeAndShapeInfo>>;
template struct Ort::detail::TypeInfoCalls<Ort::detail::Base<OrtTypeInfo>>;
template struct Ort::detail::TypeInfoCalls<Ort::detail::Unowned<const OrtTypeInfo>>;
template struct Ort::detail::OpAttrCalls<Ort::detail::Base<OrtOpAttr>>;
template struct Ort::detail::OpAttrCalls<Ort::detail::Unowned<const OrtOpAttr>>;
template struct Ort::detail::ValueInfoCalls<Ort::detail::Base<OrtValueInfo>>;
template struct Ort::detail::ValueInfoCalls<Ort::detail::Unowned<const OrtValueInfo>>;
template struct Ort::detail::NodeCalls<Ort::detail::Base<OrtNode>>;
template struct Ort::detail::NodeCalls<Ort::detail::Unowned<const OrtNode>>;
template struct Ort::detail::GraphCalls<Ort::detail::Base<OrtGraph>>;
template struct Ort::detail::GraphCalls<Ort::detail::Unowned<const OrtGraph>>;
template struct Ort::detail::KernelInfoCalls<Ort::detail::Base<OrtKernelInfo>>;
template struct Ort::detail::KernelInfoCalls<Ort::detail::Unowned<const OrtKernelInfo>>;
template struct Ort::detail::ConstValueCalls<Ort::detail::Unowned<const OrtValue>>;
template struct Ort::detail::ValueCalls<Ort::detail::Base<OrtValue>>;
template struct Ort::detail::ValueCalls<Ort::detail::Unowned<OrtValue>>;

namespace {

// Reads from a file all 65536 values of a format as floats, then floats and their bits in the format.
template <typename T>
void check_numbers(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  CHECK(file != nullptr);
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const T number = T::FromBits(static_cast<uint16_t>(bits));
    float expected = 0;
    CHECK(std::fread(&expected, sizeof expected, 1, file) == 1);
    CHECK(number.IsNaN() == std::isnan(expected));
    CHECK(number.IsInfinity() == std::isinf(expected));
    CHECK(number.IsFinite() == std::isfinite(expected));
    CHECK(number.IsNegative() == std::signbit(expected));
    CHECK(number.IsNaNOrZero() == (std::isnan(expected) || expected == 0));
    CHECK((number == number) == (expected == expected));
    CHECK(number.IsNormal() != (number.IsSubnormal() || number.IsNaNOrZero() || number.IsInfinity()));
    if (number.IsNaN()) continue;
    CHECK(static_cast<float>(number) == expected && std::signbit(number.ToFloat()) == std::signbit(expected));
    CHECK(T(expected).val == bits);
    CHECK(number.Negate().ToFloat() == -expected && number.Abs().ToFloat() == std::fabs(expected));
    CHECK((number < T(1.0f)) == (expected < 1.0f) && !(number != number));
  }
  struct Pair {
    float value;
    uint32_t bits;
  } pair;
  int pairs = 0;
  for (; std::fread(&pair, sizeof pair, 1, file) == 1; ++pairs) {
    const T found(pair.value);
    if (std::isnan(pair.value))
      CHECK(found.IsNaN());
    else
      CHECK(found.val == pair.bits);
  }
  CHECK(pairs > 1000);
  CHECK(T::FromBits(T::kOneBits).ToFloat() == 1 && T::FromBits(T::kMinusOneBits).ToFloat() == -1);
  CHECK(T::FromBits(T::kPositiveInfinityBits).IsPositiveInfinity());
  CHECK(T::FromBits(T::kNegativeInfinityBits).IsNegativeInfinity());
  CHECK(T::FromBits(T::kMaxValueBits).Negate() == T::FromBits(T::kMinValueBits));
  CHECK(T(1 + T::FromBits(T::kEpsilonBits).ToFloat()).val == T::kOneBits + 1);
  CHECK(T::AreZero(T(0.0f), T(-0.0f)) && T(0.0f) == T(-0.0f));
  std::fclose(file);
}

}  // namespace

// Arguments: the folder of a recorded run, and the files with the numbers of both formats.
int main(int argc, char** argv) {
  if (argc != 4) return 2;
  check_numbers<Ort::Float16_t>(argv[2]);
  check_numbers<Ort::BFloat16_t>(argv[3]);

  const std::string folder = std::string(argv[1]) + "/";
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "headers");
  Ort::SessionOptions options;
  options.AddConfigEntry(kOrtSessionOptionsConfigSetDenormalAsZero, "1");
  CHECK(options.GetConfigEntry("session.set_denormal_as_zero") == "1");
  Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_CPU(options, 1));
  OrtStatus* status = OrtSessionOptionsAppendExecutionProvider_CPU(nullptr, 1);
  CHECK(status != nullptr && Ort::GetApi().GetErrorCode(status) == ORT_INVALID_ARGUMENT);
  Ort::GetApi().ReleaseStatus(status);
  Ort::RunOptions run;
  run.AddConfigEntry(kOrtRunOptionsConfigEnableMemoryArenaShrinkage, "cpu:0");

  Ort::AllocatorWithDefaultOptions allocator;
  const int64_t shape[] = {2};
  Ort::Value half = Ort::Value::CreateTensor<Ort::Float16_t>(allocator, shape, 1);
  half.GetTensorMutableData<Ort::Float16_t>()[1] = Ort::Float16_t(0.5f);
  CHECK(half.GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
  CHECK(half.GetConst().GetTensorData<Ort::Float16_t>()[1] == Ort::Float16_t(0.5f));
  CHECK(half.GetConst().GetTensorRawData() == half.GetTensorMutableRawData());
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  CHECK(memory.GetConst() == memory && memory.GetConst().GetAllocatorName() == "Cpu");

  Ort::CheckpointState state = Ort::CheckpointState::LoadCheckpoint(folder + "checkpoint");
  state.AddProperty("epoch", Ort::Property(int64_t{3}));
  state.AddProperty("best", Ort::Property(0.25f));
  state.AddProperty("name", Ort::Property(std::string("a name")));
  CHECK(*Ort::detail::GetIf<int64_t>(state.GetProperty("epoch")) == 3);
  CHECK(*Ort::detail::GetIf<float>(state.GetProperty("best")) == 0.25f);
  CHECK(*Ort::detail::GetIf<std::string>(state.GetProperty("name")) == "a name");
  CHECK(Ort::detail::GetIf<float>(state.GetProperty("epoch")) == nullptr);

  // Without an eval model: its names are an empty list.
  Ort::TrainingSession session(env, options, state, folder + "training_model.onnx");
  CHECK(session.InputNames(true).size() == 2 && session.OutputNames(true).size() == 1);
  CHECK(session.InputNames(false).empty() && session.OutputNames(false).empty());
  return 0;
}
