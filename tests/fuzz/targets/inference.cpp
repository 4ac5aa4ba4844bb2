// Creating an inference session and running it.
#include "../session_config.h"
#include "../support.h"
#include "fuzz_case.pb.h"
#include "graph/onnx_proto.h"
#include "graph/onnx_tensor.h"
#include "op/signature.h"
#include "session/inference_session.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

// False if the model has an input that no value is made for.
bool run(InferenceSession& session, const fuzz::Inference& given, uint32_t seed) {
  ExternalFiles none({});
  InputMaker maker(seed);
  std::vector<std::string> names;
  std::vector<Value> values;
  for (const ValueInfo& info : session.inputs()) {
    names.push_back(info.name);
    const ::onnx::TensorProto* tensor = nullptr;
    for (const auto& candidate : given.input())
      if (candidate.name() == info.name) tensor = &candidate;
    if (tensor != nullptr) {
      const std::string bytes = tensor->SerializeAsString();
      ortrain::onnx::TensorProto read;
      if (!protobuf::read(bytes, read.kType, &read)) return false;
      values.emplace_back(read_tensor(read, none));
    } else {
      auto value = maker.make(info);
      if (!value) return false;
      values.push_back(std::move(*value));
    }
  }
  for (const Value& output : session.run(names, values, {}, &short_run())) read_all(output);
  return true;
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Inference given;
  if (!given.ParseFromArray(data, static_cast<int>(size))) return 0;
  const std::string bytes = given.model().SerializeAsString();
  try {
    SessionOptions options = session_options(given.config());
    options.graph_optimization_level = static_cast<int>(given.optimization_level());
    Model model =
        load_model(bytes.data(), bytes.size(), "model in memory", {.limits = model_limits(options)});
    InferenceSession session(std::move(options), std::move(model));
    if (!run(session, given, given.seed())) return 0;
    // once more, with the same shapes or with others
    if (given.seed() % 4 == 0) run(session, given, given.seed());
    if (given.seed() % 4 == 1) run(session, given, given.seed() + 1);
  } catch (const Error&) {
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_message<fuzz::Inference>(
      data, size, max_size, seed, [](fuzz::Inference& given, Random& random) {
        switch (below(random, 12)) {
          case 0:
            given.set_seed(static_cast<uint32_t>(below(random, 1000)));
            break;
          case 1:
            given.set_optimization_level(static_cast<uint32_t>(below(random, 4)));
            break;
          case 2:
            mutate_config(*given.mutable_config(), random);
            break;
          case 3:
          case 4:
            if (given.input_size() == 0) break;
            if (below(random, 4) == 0)  // made up from now on
              given.mutable_input()->RemoveLast();
            else
              mutate_tensor(*given.mutable_input(
                                static_cast<int>(below(random, static_cast<size_t>(given.input_size())))),
                            random);
            break;
          default:
            mutate_model(*given.mutable_model(), random, operators());
        }
      });
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                            uint8_t* out, size_t max_size, unsigned seed) {
  fuzz::Inference given, from;
  if (!given.ParseFromArray(a, static_cast<int>(a_size)) || !from.ParseFromArray(b, static_cast<int>(b_size)))
    return 0;
  Random random(seed + 1);
  cross_models(*given.mutable_model(), from.model(), random);
  return store(given, out, max_size);
}
