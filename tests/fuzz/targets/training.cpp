// Creating a training session from artifacts, and taking steps.
#include "../session_config.h"
#include "../support.h"
#include "fuzz_case.pb.h"
#include "op/signature.h"
#include "session/training_session.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

Model model_of(const onnx::ModelProto& proto, const char* what, const ModelLimits& limits) {
  const std::string bytes = proto.SerializeAsString();
  return load_model(bytes.data(), bytes.size(), what, {.limits = limits});
}

// Nothing if the model has an input that no tensor is made for.
std::optional<std::vector<Tensor>> inputs_of(const TrainingSession& session, bool training,
                                             InputMaker& maker) {
  std::vector<Tensor> out;
  for (const ValueInfo& info : session.inputs(training)) {
    const auto value = maker.make(info);
    const Tensor* tensor = value ? std::get_if<Tensor>(&*value) : nullptr;
    if (tensor == nullptr) return std::nullopt;
    out.push_back(*tensor);
  }
  return out;
}

bool step(TrainingSession& session, bool training, InputMaker& maker) {
  const auto inputs = inputs_of(session, training, maker);
  if (!inputs) return false;
  std::vector<Tensor> outputs(session.output_names(training).size());
  std::vector<const Tensor*> given;
  std::vector<Tensor*> wanted;
  for (const Tensor& input : *inputs) given.push_back(&input);
  for (Tensor& output : outputs) wanted.push_back(&output);
  if (training)
    session.train_step(given, wanted, &short_run());
  else
    session.eval_step(given, wanted, &short_run());
  for (const Tensor& output : outputs) read_all(output);
  return true;
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Training given;
  if (!given.ParseFromArray(data, static_cast<int>(size))) return 0;
  try {
    auto state = CheckpointState::load(given.checkpoint().data(), given.checkpoint().size());
    std::optional<Model> eval, optimizer;
    SessionOptions options = session_options(given.config());
    const ModelLimits limits = model_limits(options);
    if (given.has_eval()) eval = model_of(given.eval(), "eval model", limits);
    if (given.has_optimizer()) optimizer = model_of(given.optimizer(), "optimizer model", limits);
    TrainingSession session(std::move(options), state, model_of(given.train(), "training model", limits),
                            std::move(eval), std::move(optimizer));
    InputMaker maker(given.seed());
    for (uint32_t n = 0; n < std::min(given.steps(), 3u); ++n) {
      if (!step(session, true, maker)) break;
      if (session.has_optimizer()) session.optimizer_step();
      session.lazy_reset_grad();
    }
    if (given.has_eval() && given.steps() > 0) step(session, false, maker);
    if (given.seed() % 8 == 7) {
      state->save(scratch() / "checkpoint", true);
      CheckpointState::load(scratch() / "checkpoint");
      if (given.has_eval())
        session.export_for_inferencing(scratch() / "model.onnx", session.output_names(false));
    }
  } catch (const Error&) {
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_message<fuzz::Training>(
      data, size, max_size, seed, [](fuzz::Training& given, Random& random) {
        switch (below(random, 16)) {
          case 0:
            given.set_seed(static_cast<uint32_t>(below(random, 1000)));
            break;
          case 1:
            given.set_steps(static_cast<uint32_t>(below(random, 4)));
            break;
          case 2:
            mutate_config(*given.mutable_config(), random);
            break;
          case 3: {
            std::string bytes = given.checkpoint();
            const size_t n = bytes.size();
            bytes.resize(n + 64);
            bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), n, n + 64));
            given.set_checkpoint(bytes);
            break;
          }
          case 4:
            if (below(random, 4) == 0)
              given.clear_eval();
            else
              mutate_model(*given.mutable_eval(), random, operators());
            break;
          case 5:
          case 6:
            if (below(random, 8) == 0)
              given.clear_optimizer();
            else
              mutate_model(*given.mutable_optimizer(), random, operators());
            break;
          default:
            mutate_model(*given.mutable_train(), random, operators());
        }
      });
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                            uint8_t* out, size_t max_size, unsigned seed) {
  fuzz::Training given, from;
  if (!given.ParseFromArray(a, static_cast<int>(a_size)) || !from.ParseFromArray(b, static_cast<int>(b_size)))
    return 0;
  Random random(seed + 1);
  cross_models(*given.mutable_train(), from.train(), random);
  return store(given, out, max_size);
}
