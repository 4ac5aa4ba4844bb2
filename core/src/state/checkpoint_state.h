// CheckpointState: everything that training changes: parameters, gradients, optimizer moments, step count,
// and the user's properties. A training session works on it; it can be saved at any time.
//
// A thread may read or save it while another one trains: calls that change it and calls that read its values
// take turns (hold()). Calls of sessions hold the state from their beginning to their end, and so do the
// functions here that copy values in or out, or save.
//
// Trainable parameters are stored in one contiguous block, and so are gradients and each of the
// optimizer's moments, all with the same offsets; a named parameter is a view. An optimizer step is
// therefore one vectorized pass, however many parameters there are. Values are read from a file straight
// into these blocks: only the file's tables are mapped, so values are in memory once. A mapped state has no
// such blocks: its values stay in the file, for sessions that evaluate and export.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "op/kernel.h"
#include "runtime/tensor.h"
#include "runtime/turn_lock.h"

namespace ortrain {

class MappedFile;

// The shape of a nominal parameter whose shape is not known yet.
inline const Shape kUnknownShape{0};

using Property = std::variant<int64_t, float, std::string>;

// The property of a checkpoint of adapters, and the metadata of their models, that holds a digest of the
// base. Adapters fit the base that they were trained on alone.
inline constexpr const char* kAdapterBase = "ortrain.adapter_base";

// One parameter. `data` and `gradient` are views into the contiguous arenas of the state.
//
// The elements of data, gradient and moments are stored in one order, that of `layout`, which has no padding.
// Code that treats all elements alike, such as the optimizer, need not know it; code that passes elements in
// or out uses row_major() and assign().
struct Parameter {
  std::string name;
  bool trainable = false;
  Tensor data;
  Tensor gradient;              // undefined for frozen parameters and until a training session is created
  std::vector<Tensor> moments;  // one for each moment of the optimizer; empty until there is optimizer state
  LayoutPtr layout = nullptr;   // null: row-major

  // `stored` (data, gradient or a moment) in row-major order: itself, or a copy.
  Tensor row_major(const Tensor& stored) const;
  // Copies `value`, which is row-major and has the same type and shape, into `stored`.
  void assign(const Tensor& stored, const Tensor& value) const;
};

// A learning rate schedule: its name, its settings as a text, and the numbers that it keeps from step to
// step.
struct ScheduleState {
  std::string name, settings;
  std::map<std::string, double> values;
};

// The state of an optimizer between steps, except the moments, which are stored with the parameters.
struct OptimizerState {
  int64_t step = 0;  // number of optimizer steps taken
  float initial_learning_rate = 1e-3f;
  // What was set for parameter groups while training, by the names of group and attribute. It takes the place
  // of what the optimizer model says.
  std::map<std::string, std::map<std::string, float>> group_settings;
  // Numbers that the optimizer keeps for parameter groups, the same way.
  std::map<std::string, std::map<std::string, double>> group_scalars;
  // The names of the moments. Files of onnxruntime have no names.
  std::vector<std::string> state_names;
  std::optional<ScheduleState> schedule;
};

class CheckpointState {
 public:
  CheckpointState() = default;

  // Waits until no other thread uses the values, the optimizer's state or the properties, and excludes other
  // threads for as long as the result exists. Code that uses these through references must hold the state.
  TurnLock::Turn hold() const { return TurnLock::Turn(*turns_); }

  // Reads a checkpoint file (format: docs/checkpoint-format). Throws kNoSuchFile, kFail.
  static std::shared_ptr<CheckpointState> load(const std::filesystem::path& path);
  // The same from memory; the bytes are not needed afterwards.
  static std::shared_ptr<CheckpointState> load(const void* data, size_t bytes);
  // Reads a checkpoint file without its values, which stay in the file and are mapped. The state is
  // read-only, and has no gradients. The file must not change while the state exists.
  static std::shared_ptr<CheckpointState> map(const std::filesystem::path& path);
  bool is_mapped() const { return !files_.empty(); }
  // Throws kInvalidArgument, saying what was being done, if the state is mapped.
  void require_writable(const std::string& doing) const;
  // Writes the state; the file at `path` is replaced in one step. Waits for a step that runs.
  void save(const std::filesystem::path& path, bool include_optimizer_state) const;

  // Adds a parameter before a session exists (artifact generation, tests). Throws if the name is taken.
  void add_parameter(const std::string& name, bool trainable, const Tensor& value);

  // Trainable parameters first, then frozen ones, each in the order of the file.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  bool has_parameter(const std::string& name) const { return index_.count(name) > 0; }
  // Throws kInvalidArgument with the nearest known names if there is none with that name.
  const Parameter& parameter(const std::string& name) const;
  // Copies `value` into the parameter, in row-major order; type and shape must match.
  void update_parameter(const std::string& name, const Tensor& value);

  // Copies the parameters, the moments and the step count of another state, and its properties; gradients
  // become zero. Without a state of the optimizer in the source, this one's starts again. Throws
  // kInvalidArgument, with nothing changed, if the states do not fit each other.
  void assign(const CheckpointState& source);
  // The digest of the base that the parameters are adapters of; empty if they are not adapters.
  std::string adapter_base() const;

  // Number of elements of all parameters, or of the trainable ones.
  int64_t parameters_size(bool trainable_only) const;
  // The one element type of all parameters, or of the trainable ones; float if there are none. Throws
  // kInvalidArgument, saying what was being done, if they have several.
  DType parameters_type(bool trainable_only, const char* doing) const;
  // All values in the order of parameters(), end to end, without gaps. `buffer` has parameters_size()
  // elements of parameters_type(), any shape. set_buffer_order() sets another order.
  void copy_to_buffer(const Tensor& buffer, bool trainable_only) const;
  void copy_from_buffer(const Tensor& buffer, bool trainable_only);
  // The order of parameters in buffers, if not that of parameters(). A training session sets that of its
  // training model, as onnxruntime-training does. `names` must be those of all parameters.
  void set_buffer_order(const std::vector<std::string>& names);
  // Changes whenever frozen parameters get new values from outside: whatever was computed from them is then
  // stale.
  uint64_t frozen_version() const { return frozen_version_; }

  // Reorders trainable parameters, by name. Those that are not named become row-major and stay so: if several
  // sessions share a state, each must support the order.
  void set_layouts(const std::unordered_map<std::string, LayoutPtr>& layouts);
  // Changes with the orders: code that bound memory of the state must bind it again.
  uint64_t layouts_version() const { return layouts_version_; }

  // A nominal checkpoint has names and types but no values until copy_from_buffer provides them. Those of
  // onnxruntime-training have no shapes either: the training session states them.
  bool is_nominal() const { return nominal_; }
  void set_nominal(bool nominal) { nominal_ = nominal; }
  // States the shape of a parameter without values; throws if the checkpoint states another.
  void set_nominal_shape(const std::string& name, const Shape& shape);
  // Throws, saying what was being done, if there are no values.
  void require_values(const std::string& doing, const char* what) const;

  std::map<std::string, Property>& properties() { return properties_; }
  const std::map<std::string, Property>& properties() const { return properties_; }
  // Throws kInvalidArgument naming the known properties if there is none with that name.
  const Property& property(const std::string& name) const;

  bool has_optimizer_state() const { return has_optimizer_; }
  OptimizerState& optimizer() { return optimizer_; }
  const OptimizerState& optimizer() const { return optimizer_; }

  // Puts data and gradients of the parameters into contiguous arenas (zeros for what did not exist before).
  // Called by the training session. Existing views of parameter data stay readable. The values of a mapped
  // state stay where they are, and it gets no gradients; make_moments() only checks those it has.
  void make_arenas();
  void make_moments(int count) { make_moments(count, std::memcpy); }
  // The type and shape of a moment of a parameter, as a tensor without memory.
  using MomentForm = std::function<Tensor(const Parameter& parameter, size_t moment)>;
  // Throws kInvalidArgument if there are moments of other forms.
  void make_moments(const std::vector<std::string>& names, const MomentForm& form);
  // The arenas of the trainable parameters as flat tensors of bytes with gaps (each parameter is aligned). If
  // no parameter is a 16-bit float and each moment has the type and shape of its parameter, every arena has
  // the same layout, so that one pass can process them together; the moments of 16-bit floats are float. The
  // gaps are zero.
  const Tensor& data_arena() const { return data_arena_; }
  const Tensor& gradient_arena() const { return gradient_arena_; }
  const std::vector<Tensor>& moment_arenas() const { return moment_arenas_; }
  bool has_gradients() const { return gradients_ready_; }
  void set_gradients_ready(bool ready) {
    gradients_ready_ = ready;
    stepped_ = true;
  }
  // Whether a session has memory for gradients, and has not begun a train step: all of them are zero.
  bool has_zero_gradients() const { return gradient_arena_.defined() && !gradients_ready_ && !stepped_; }

  // A state belongs to one training session at a time. False if it belongs to another one.
  bool enter_session() { return !std::atomic_ref(in_session_).exchange(true); }
  void leave_session() { std::atomic_ref(in_session_).store(false); }

  // Gradients written from outside take the place of what train steps accumulated, and count as accumulated
  // from then on. `value` has the parameter's type and shape. If gradients are stale, so that the next train
  // step would have overwritten them, the others become zero.
  void set_gradient(const std::string& name, const Tensor& value);
  // Multiplies all gradients by numerator / denominator, unless the next train step overwrites them.
  void scale_gradients(int64_t numerator, int64_t denominator);
  // All gradients in the order of buffers, each row-major, of type gradients_type(), any shape.
  void copy_gradients_to_buffer(const Tensor& buffer) const;
  void copy_buffer_to_gradients(const Tensor& buffer);
  // The elements of that buffer that belong to a parameter: the first, and how many.
  using GradientPlaces = std::unordered_map<std::string, std::pair<size_t, size_t>>;
  // By name. Throws if the buffer does not fit.
  GradientPlaces gradient_places(const Tensor& buffer, const char* doing) const;
  // One of the gradients, at its place of the buffer.
  void copy_gradient(const std::string& name, const Tensor& buffer, size_t first) const;
  // The type of that buffer: the wide form of the trainable parameters' type.
  DType gradients_type(const char* doing) const;
  void set_gradients_stale(bool stale) { gradients_stale_ = stale; }
  // Changes whenever gradients are written from outside.
  uint64_t gradients_version() const { return gradients_version_; }

 private:
  friend struct CheckpointIo;

  // Throws if assign() cannot be done.
  void require_alike(const CheckpointState& source) const;

  // Copies bytes into an arena: (to, from, how many).
  using CopyBytes = std::function<void(std::byte*, const std::byte*, size_t)>;
  void make_data_arenas(const CopyBytes& copy = std::memcpy);
  void make_moments(int count, const CopyBytes& copy, const MomentForm& form = {});
  // Iterates over the parameters and a buffer: copy(parameters' bytes, buffer's bytes, how many) is called
  // for runs of row-major parameters, convert(parameter, its part of the buffer) for each of the others.
  template <typename Copy, typename Convert>
  void walk_buffer(const Tensor& buffer, bool trainable_only, const char* doing, Copy&& copy,
                   Convert&& convert) const;

  // The trainable parameters in the order of buffers; throws if `buffer` does not fit their gradients.
  std::vector<const Parameter*> gradient_order(const Tensor& buffer, const char* doing) const;
  // Called before and after gradients are written from outside.
  void require_gradients(const std::string& doing) const;
  void wrote_gradients();

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<size_t> buffer_order_;  // empty: that of parameters_
  std::map<std::string, Property> properties_;
  OptimizerState optimizer_;
  bool has_optimizer_ = false;
  bool nominal_ = false;
  bool gradients_ready_ = false;
  bool stepped_ = false;  // a train step has begun, and may have failed
  bool in_session_ = false;
  bool gradients_stale_ = true;
  uint64_t gradients_version_ = 0;
  uint64_t frozen_version_ = 0;
  uint64_t layouts_version_ = 0;
  std::unordered_set<std::string> row_major_;             // parameters that have to be
  std::vector<std::shared_ptr<const MappedFile>> files_;  // of a mapped state
  Tensor data_arena_, gradient_arena_;
  std::vector<Tensor> moment_arenas_;
  std::unique_ptr<TurnLock> turns_ = std::make_unique<TurnLock>();
};

}  // namespace ortrain
