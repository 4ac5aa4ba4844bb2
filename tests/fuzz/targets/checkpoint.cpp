// Reading a checkpoint, replacing its values, and writing it again.
#include <cstring>
#include <fstream>

#include "../support.h"
#include "checkpoint_objects.h"
#include "state/checkpoint_state.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.raw() == nullptr || b.raw() == nullptr || std::equal(a.raw(), a.raw() + a.bytes(), b.raw()));
}

void compare(const CheckpointState& a, const CheckpointState& b) {
  if (a.parameters().size() != b.parameters().size())
    wrong("a checkpoint that was saved has other parameters");
  for (const Parameter& parameter : a.parameters()) {
    const Parameter& other = b.parameter(parameter.name);
    if (parameter.trainable != other.trainable || !same(parameter.data, other.data) ||
        parameter.moments.size() != other.moments.size())
      wrong("a checkpoint that was saved has another parameter \"" + parameter.name + "\"");
    for (size_t i = 0; i < parameter.moments.size(); ++i)
      if (!same(parameter.moments[i], other.moments[i]))
        wrong("a checkpoint that was saved has other moments of \"" + parameter.name + "\"");
  }
  // NaN is not equal to itself
  if (a.properties().size() != b.properties().size())
    wrong("a checkpoint that was saved has other properties");
}

// Gives the parameters values, which those of a nominal state lack, and takes them back.
void fill(CheckpointState& state) {
  const int64_t size = state.parameters_size(false);
  if (size > 4096) return;
  const Tensor given(state.parameters_type(false, "filling a state"), {size});
  std::memset(given.raw(), 0, given.bytes());
  state.copy_from_buffer(given, false);
  const Tensor taken(given.dtype(), {size});
  state.copy_to_buffer(taken, false);
  read_all(taken);
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::shared_ptr<CheckpointState> state;
  try {
    state = CheckpointState::load(data, size);
    if (!state->is_nominal())  // otherwise there are no values
      for (const Parameter& parameter : state->parameters()) read_all(parameter.data);
  } catch (const Error&) {
    // files may have data beside them
  }
  if (state) try {
      fill(*CheckpointState::load(data, size));
    } catch (const Error&) {
    }
  const std::filesystem::path file = scratch() / "checkpoint";
  if (size % 16 == 0) {
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    std::ofstream(file.string() + ".data", std::ios::binary) << std::string(kExternalBytes, 'x');
    try {
      CheckpointState::load(file);
    } catch (const Error&) {
    }
  }
  if (!state || size % 16 != 1) return 0;
  std::shared_ptr<CheckpointState> again;
  try {
    state->save(file, true);
    again = CheckpointState::load(file);
  } catch (const Error& error) {
    wrong("a checkpoint that was read cannot be saved and read again: " + error.message());
  }
  compare(*state, *again);
  return 0;
}

namespace {

template <typename T>
T* some(std::vector<std::unique_ptr<T>>& list, Random& random) {
  return list.empty() ? nullptr : list[below(random, list.size())].get();
}

void mutate_tensor(fbs::TensorT& tensor, Random& random) {
  switch (below(random, 8)) {
    case 0:
      tensor.data_type = static_cast<int32_t>(below(random, 32));
      break;
    case 1:
      tensor.dims.push_back(interesting_integer(random));
      break;
    case 2:
      if (!tensor.dims.empty()) tensor.dims[below(random, tensor.dims.size())] = interesting_integer(random);
      break;
    case 3:
      if (!tensor.dims.empty()) tensor.dims.pop_back();
      break;
    case 4:
      tensor.raw_data.resize(below(random, 65));
      break;
    case 5:
      tensor.external_data_offset = interesting_integer(random);
      break;
    case 6:
      tensor.name = below(random, 2) == 0 ? "" : "\xff";
      break;
    default:
      tensor.doc_string = "ortrain data id 0123456789abcdef";
  }
}

void mutate(fbs::CheckpointT& checkpoint, Random& random) {
  if (checkpoint.module_state == nullptr) checkpoint.module_state = std::make_unique<fbs::ModuleStateT>();
  fbs::ModuleStateT& module = *checkpoint.module_state;
  auto& parameters = below(random, 2) == 0 ? module.requires_grad_params : module.frozen_params;
  fbs::TensorT* tensor = some(parameters, random);
  fbs::OptimizerGroupT* group = some(checkpoint.optimizer_groups, random);
  fbs::ParameterOptimizerStateT* moments = group != nullptr ? some(group->optimizer_states, random) : nullptr;
  switch (below(random, 14)) {
    case 0:
      checkpoint.version = static_cast<int32_t>(below(random, 4));
      break;
    case 1:
      module.is_nominal_state = !module.is_nominal_state;
      break;
    case 2:
      module.has_external_data = !module.has_external_data;
      break;
    case 3:
      if (tensor != nullptr) parameters.push_back(std::make_unique<fbs::TensorT>(*tensor));
      break;
    case 4:
      if (!parameters.empty()) parameters.pop_back();
      break;
    case 5:
      if (group != nullptr) group->step = interesting_integer(random);
      break;
    case 6:
      if (group != nullptr) group->initial_learning_rate = static_cast<float>(interesting_float(random));
      break;
    case 7:
      if (group != nullptr)
        checkpoint.optimizer_groups.push_back(std::make_unique<fbs::OptimizerGroupT>(*group));
      else
        checkpoint.optimizer_groups.push_back(std::make_unique<fbs::OptimizerGroupT>());
      break;
    case 8:
      if (moments != nullptr) moments->param_name += "x";
      break;
    case 9: {
      if (checkpoint.property_bag == nullptr) checkpoint.property_bag = std::make_unique<fbs::PropertyBagT>();
      auto property = std::make_unique<fbs::FloatPropertyT>();
      property->name = std::string(below(random, 3), 'p');
      property->value = static_cast<float>(interesting_float(random));
      checkpoint.property_bag->floats.push_back(std::move(property));
      break;
    }
    case 10: {
      fbs::TensorT* moment = moments != nullptr ? some(moments->momentums, random) : nullptr;
      if (moment != nullptr) mutate_tensor(*moment, random);
      break;
    }
    default:
      if (tensor != nullptr) mutate_tensor(*tensor, random);
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed + 1);
  flatbuffers::Verifier verifier(data, size);
  if (below(random, 2) != 0 && fbs::VerifyCheckpointBuffer(verifier)) {
    fbs::CheckpointT checkpoint;
    fbs::GetCheckpoint(data)->UnPackTo(&checkpoint);
    mutate(checkpoint, random);
    flatbuffers::FlatBufferBuilder builder;
    fbs::FinishCheckpointBuffer(builder, fbs::CreateCheckpoint(builder, &checkpoint));
    if (builder.GetSize() <= max_size) {
      std::copy_n(builder.GetBufferPointer(), builder.GetSize(), data);
      return builder.GetSize();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
