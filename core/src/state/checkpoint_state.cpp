#include "state/checkpoint_state.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "runtime/convert.h"
#include "runtime/memory.h"
#include "runtime/text.h"
#include "state/checkpoint_io.h"

namespace ortrain {

namespace {

// Where the parameters of one kind are stored in their arena.
struct Places {
  std::vector<size_t> offsets;  // per parameter; unused for those of the other kind
  size_t bytes = 0;
};

// Places for values of the types and shapes that `like` gives for each parameter.
template <typename Like>
Places places_of(const std::vector<Parameter>& parameters, bool trainable, Like&& like) {
  Places places{std::vector<size_t>(parameters.size()), 0};
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].trainable != trainable) continue;
    places.offsets[i] = places.bytes;
    const size_t bytes = like(parameters[i]).bytes();
    require(bytes < SIZE_MAX - places.bytes - kAlignment, ErrorCode::kFail,
            "the parameters are too large for memory");
    places.bytes = align_up(places.bytes + bytes);
  }
  return places;
}

Places places_of(const std::vector<Parameter>& parameters, bool trainable) {
  return places_of(parameters, trainable, [](const Parameter& p) -> const Tensor& { return p.data; });
}

// The moments of 16-bit floats are float; those of other types have the type of the parameter.
Tensor usual_moment(const Parameter& p) { return Tensor(wide_of(p.data.dtype()), p.data.shape(), nullptr); }

bool have_one_form(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape();
}

Tensor new_arena(const Places& places) {
  return Tensor(DType::kUInt8, Shape{static_cast<int64_t>(places.bytes)});
}

// A tensor with the type and shape of `like` at `offset` in the arena, which it keeps alive. It gets the
// elements of `source`, which has the same type and shape, or zeros if there is none. The gap after it is
// zeroed.
template <typename Copy>
Tensor place(const Tensor& arena, size_t offset, const Tensor& like, const Tensor& source, const Copy& copy) {
  Tensor placed(like.dtype(), like.shape(), arena.raw() + offset, std::make_shared<Tensor>(arena));
  const size_t bytes = placed.bytes();
  if (bytes == 0) return placed;
  if (source.raw() != nullptr)
    copy(placed.raw(), source.raw(), bytes);
  else
    std::memset(placed.raw(), 0, bytes);
  std::memset(placed.raw() + bytes, 0, align_up(bytes) - bytes);
  return placed;
}

// Runs a kernel that converts the memory at slot 0 into that at slot 1.
void run(const Kernel& kernel, std::byte* from, std::byte* to) {
  std::byte* addresses[] = {from, to};
  kernel(Frame(addresses, 0));
}

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

Tensor Parameter::row_major(const Tensor& stored) const {
  if (!layout || stored.bytes() == 0) return stored;
  const Tensor copy(stored.dtype(), stored.shape());
  run(layout->to_plain({0}, {1}), stored.raw(), copy.raw());
  return copy;
}

void Parameter::assign(const Tensor& stored, const Tensor& value) const {
  if (!layout || stored.bytes() == 0) return stored.copy_from(value);
  run(layout->from_plain({0}, {1}), value.raw(), stored.raw());
}

std::shared_ptr<CheckpointState> CheckpointState::load(const std::filesystem::path& path) {
  return CheckpointIo::read(path);
}

std::shared_ptr<CheckpointState> CheckpointState::load(const void* data, size_t bytes) {
  return CheckpointIo::read(data, bytes);
}

std::shared_ptr<CheckpointState> CheckpointState::map(const std::filesystem::path& path) {
  return CheckpointIo::map(path);
}

void CheckpointState::require_writable(const std::string& doing) const {
  require(!is_mapped(), ErrorCode::kInvalidArgument, doing,
          ": the checkpoint is mapped, so its state is read-only; load the checkpoint to change or train it");
}

void CheckpointState::save(const std::filesystem::path& path, bool include_optimizer_state) const {
  CheckpointIo::write(*this, path, include_optimizer_state);
}

void CheckpointState::add_parameter(const std::string& name, bool trainable, const Tensor& value) {
  require(!has_parameter(name), ErrorCode::kInvalidArgument, "cannot add the parameter \"", name,
          "\": the checkpoint already has one with that name");
  require_writable("adding the parameter \"" + name + "\"");
  require(!gradient_arena_.defined() && !has_optimizer_, ErrorCode::kInvalidArgument,
          "cannot add the parameter \"", name, "\": a training session already uses the checkpoint");
  Parameter parameter{name, trainable, value.clone(), {}, {}};
  auto at = parameters_.end();
  if (trainable)
    at =
        std::find_if(parameters_.begin(), parameters_.end(), [](const Parameter& p) { return !p.trainable; });
  parameters_.insert(at, std::move(parameter));
  for (size_t i = 0; i < parameters_.size(); ++i) index_[parameters_[i].name] = i;
  data_arena_ = Tensor();  // the layout has changed
  buffer_order_.clear();
}

const Parameter& CheckpointState::parameter(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return parameters_[found->second];
  fail(ErrorCode::kInvalidArgument, "the checkpoint has no parameter \"", name, "\" among its ",
       parameters_.size(), suggestion(name, names_of(parameters_)));
}

void CheckpointState::update_parameter(const std::string& name, const Tensor& value) {
  const TurnLock::Turn turn = hold();
  const Parameter& target = parameter(name);
  require_values("updating the parameter \"" + name + "\"", "all the parameter states");
  require_writable("updating the parameter \"" + name + "\"");
  require(value.dtype() == target.data.dtype() && value.shape() == target.data.shape(),
          ErrorCode::kInvalidArgument, "updating the parameter \"", name, "\": expected ",
          to_string(target.data.dtype()), to_string(target.data.shape()), ", found ",
          to_string(value.dtype()), to_string(value.shape()));
  target.assign(target.data, value);
  if (!target.trainable) ++frozen_version_;
}

std::string CheckpointState::adapter_base() const {
  const auto found = properties_.find(kAdapterBase);
  if (found == properties_.end()) return "";
  const auto* digest = std::get_if<std::string>(&found->second);
  return digest ? *digest : "";
}

void CheckpointState::require_alike(const CheckpointState& source) const {
  constexpr const char* doing = "assigning a state to another one";
  require_writable(doing);
  require_values(doing, "the parameter states");
  source.require_values(doing, "the parameter states");
  require(parameters_.size() == source.parameters_.size(), ErrorCode::kInvalidArgument, doing, ": expected ",
          counted(parameters_.size(), "parameter"), ", found ", source.parameters_.size());
  for (const Parameter& p : parameters_) {
    const Parameter& other = source.parameter(p.name);
    const auto described = [](const Parameter& of) {
      return concat(of.trainable ? "trainable " : "frozen ", to_string(of.data.dtype()),
                    to_string(of.data.shape()));
    };
    require(described(p) == described(other), ErrorCode::kInvalidArgument, doing, ": the parameter \"",
            p.name, "\" should be ", described(p), ", found ", described(other));
    for (size_t m = 0; m < std::min(p.moments.size(), other.moments.size()); ++m)
      require(have_one_form(p.moments[m], other.moments[m]), ErrorCode::kInvalidArgument, doing,
              ": the optimizer states of the parameter \"", p.name, "\" have other types or shapes");
  }
  require(adapter_base() == source.adapter_base(), ErrorCode::kInvalidArgument, doing,
          ": the parameters should be adapters of the base ",
          adapter_base().empty() ? "none" : adapter_base(), ", found ",
          source.adapter_base().empty() ? "none" : source.adapter_base());
  if (!has_optimizer_) return;
  if (!source.has_optimizer_)
    return require(
        optimizer_.group_scalars.empty() ||
            std::all_of(optimizer_.group_scalars.begin(), optimizer_.group_scalars.end(),
                        [](const auto& group) { return group.second.empty(); }),
        ErrorCode::kInvalidArgument, doing,
        ": the optimizer keeps numbers for parameter groups, but the source has no optimizer state");
  require(optimizer_.state_names == source.optimizer_.state_names, ErrorCode::kInvalidArgument, doing,
          ": expected the optimizer states ", quoted_list(optimizer_.state_names), ", found ",
          quoted_list(source.optimizer_.state_names));
}

void CheckpointState::assign(const CheckpointState& source) {
  if (&source == this) return;
  // In the order of addresses, so that two threads that assign in opposite directions do not wait forever.
  const bool first = std::less<>()(this, &source);
  const TurnLock::Turn one = first ? hold() : source.hold();
  const TurnLock::Turn two = first ? source.hold() : hold();
  require_alike(source);
  for (const Parameter& p : parameters_) {
    const Parameter& other = source.parameter(p.name);
    p.assign(p.data, other.row_major(other.data));
    for (size_t i = 0; has_optimizer_ && i < p.moments.size(); ++i)
      if (source.has_optimizer_)
        p.assign(p.moments[i], other.row_major(other.moments.at(i)));
      else if (p.moments[i].bytes() > 0)
        std::memset(p.moments[i].raw(), 0, p.moments[i].bytes());
  }
  optimizer_.step = source.has_optimizer_ ? source.optimizer_.step : 0;
  for (auto& [group, scalars] : optimizer_.group_scalars)  // in place: the optimizer points to them
    for (auto& [name, value] : scalars)
      if (const auto from = source.optimizer_.group_scalars.find(group);
          from != source.optimizer_.group_scalars.end() && from->second.contains(name))
        value = from->second.at(name);
  properties_ = source.properties_;
  ++frozen_version_;
  if (!gradient_arena_.defined()) return;
  if (gradient_arena_.bytes() > 0) std::memset(gradient_arena_.raw(), 0, gradient_arena_.bytes());
  gradients_ready_ = false;
  ++gradients_version_;
}

int64_t CheckpointState::parameters_size(bool trainable_only) const {
  int64_t size = 0;
  for (const Parameter& parameter : parameters_)
    if (parameter.trainable || !trainable_only) size += parameter.data.size();
  return size;
}

DType CheckpointState::parameters_type(bool trainable_only, const char* doing) const {
  const Parameter* first = nullptr;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.trainable && trainable_only) continue;
    if (first == nullptr) first = &parameter;
    require(parameter.data.dtype() == first->data.dtype(), ErrorCode::kInvalidArgument, doing, ": the ",
            trainable_only ? "trainable " : "", "parameters must all have the same type, but \"", first->name,
            "\" is ", to_string(first->data.dtype()), " and \"", parameter.name, "\" is ",
            to_string(parameter.data.dtype()));
  }
  return first == nullptr ? DType::kFloat : first->data.dtype();
}

template <typename Copy, typename Convert>
void CheckpointState::walk_buffer(const Tensor& buffer, bool trainable_only, const char* doing, Copy&& copy,
                                  Convert&& convert) const {
  std::vector<const Parameter*> wanted;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[buffer_order_.empty() ? i : buffer_order_[i]];
    if (parameter.trainable || !trainable_only) wanted.push_back(&parameter);
  }
  const int64_t size = parameters_size(trainable_only);
  const DType dtype = wanted.empty() ? buffer.dtype() : parameters_type(trainable_only, doing);
  require(buffer.dtype() == dtype && buffer.size() == size, ErrorCode::kInvalidArgument, doing,
          ": the buffer should hold ", counted(size, "element"), " of type ", to_string(dtype), " (",
          trainable_only ? "trainable" : "all", " parameters), found ", buffer.size(), " of type ",
          to_string(buffer.dtype()));
  // Parameters stored end to end are copied together. Those of a nominal state are not stored yet.
  std::byte* at = buffer.raw();
  for (size_t i = 0; i < wanted.size();) {
    const Tensor& data = wanted[i]->data;
    if (wanted[i]->layout) {
      convert(*wanted[i++], Tensor(data.dtype(), data.shape(), at));
      at += data.bytes();
      continue;
    }
    size_t bytes = 0;
    for (; i < wanted.size() && !wanted[i]->layout &&
           (bytes == 0 || (data.raw() != nullptr && wanted[i]->data.raw() == data.raw() + bytes));
         ++i)
      bytes += wanted[i]->data.bytes();
    if (bytes > 0) copy(data.raw(), at, bytes);
    at += bytes;
  }
}

void CheckpointState::copy_to_buffer(const Tensor& buffer, bool trainable_only) const {
  const TurnLock::Turn turn = hold();
  require_values("copying the parameters to a buffer", "the model parameters");
  walk_buffer(
      buffer, trainable_only, "copying the parameters to a buffer",
      [](const std::byte* parameters, std::byte* part, size_t bytes) {
        std::memcpy(part, parameters, bytes);
      },
      [](const Parameter& parameter, const Tensor& part) {
        run(parameter.layout->to_plain({0}, {1}), parameter.data.raw(), part.raw());
      });
}

void CheckpointState::copy_from_buffer(const Tensor& buffer, bool trainable_only) {
  const TurnLock::Turn turn = hold();
  constexpr const char* doing = "copying a buffer to the parameters";
  require_writable(doing);
  if (!trainable_only) ++frozen_version_;
  if (nominal_) {
    for (const Parameter& parameter : parameters_) {
      require(parameter.data.shape() != kUnknownShape, ErrorCode::kInvalidArgument, doing,
              ": the checkpoint is nominal and does not know the shape of \"", parameter.name,
              "\"; create a training session with it first");
      require(
          parameter.trainable || !trainable_only, ErrorCode::kInvalidArgument, doing,
          ": the checkpoint is nominal, so the buffer must hold all parameters, not only the trainable ones; "
          "\"",
          parameter.name, "\" is frozen");
    }
    // Checks type and size before memory is requested.
    walk_buffer(
        buffer, trainable_only, doing, [](std::byte*, const std::byte*, size_t) {},
        [](const Parameter&, const Tensor&) {});
    make_data_arenas();
  }
  walk_buffer(
      buffer, trainable_only, doing,
      [](std::byte* parameters, const std::byte* part, size_t bytes) {
        std::memcpy(parameters, part, bytes);
      },
      [](const Parameter& parameter, const Tensor& part) { parameter.assign(parameter.data, part); });
  nominal_ = false;
}

DType CheckpointState::gradients_type(const char* doing) const {
  const Parameter* first = nullptr;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.trainable) continue;
    if (first == nullptr) first = &parameter;
    require(wide_of(parameter.data.dtype()) == wide_of(first->data.dtype()), ErrorCode::kInvalidArgument,
            doing, ": the trainable parameters must all be floats or all be doubles, but \"", first->name,
            "\" is ", to_string(first->data.dtype()), " and \"", parameter.name, "\" is ",
            to_string(parameter.data.dtype()));
  }
  return first == nullptr ? DType::kFloat : wide_of(first->data.dtype());
}

// The gradient of a parameter in row-major order and of type `dtype`, its own or the wide form of it.
static void copy_gradient_of(const Parameter& parameter, DType dtype, std::byte* at) {
  const Tensor& gradient = parameter.gradient;
  if (gradient.dtype() != dtype)
    to_wide(gradient.dtype(), parameter.row_major(gradient).raw(), at, gradient.size());
  else if (parameter.layout && gradient.bytes() > 0)
    run(parameter.layout->to_plain({0}, {1}), gradient.raw(), at);
  else if (gradient.bytes() > 0)
    std::memcpy(at, gradient.raw(), gradient.bytes());
}

std::vector<const Parameter*> CheckpointState::gradient_order(const Tensor& buffer, const char* doing) const {
  std::vector<const Parameter*> order;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[buffer_order_.empty() ? i : buffer_order_[i]];
    if (parameter.trainable) order.push_back(&parameter);
  }
  const DType dtype = gradients_type(doing);
  const int64_t size = parameters_size(true);
  require(buffer.dtype() == dtype && buffer.size() == size, ErrorCode::kInvalidArgument, doing,
          ": expected a buffer of ", counted(size, "element"), " of type ", to_string(dtype),
          " (the trainable parameters), found ", buffer.size(), " of type ", to_string(buffer.dtype()));
  return order;
}

void CheckpointState::require_gradients(const std::string& doing) const {
  require_writable(doing);
  require(gradient_arena_.defined(), ErrorCode::kRuntimeException, doing,
          ": the state has no memory for gradients yet; create a training session with it first");
}

void CheckpointState::wrote_gradients() {
  gradients_ready_ = true;
  gradients_stale_ = false;
  ++gradients_version_;
}

void CheckpointState::set_gradient(const std::string& name, const Tensor& value) {
  const TurnLock::Turn turn = hold();
  const Parameter& target = parameter(name);
  const std::string doing = concat("setting the gradient of the parameter \"", name, "\"");
  require(target.trainable, ErrorCode::kInvalidArgument, doing,
          ": the parameter is frozen and has no gradient, expected a trainable one");
  require(value.dtype() == target.data.dtype() && value.shape() == target.data.shape(),
          ErrorCode::kInvalidArgument, doing, ": expected ", to_string(target.data.dtype()),
          to_string(target.data.shape()), ", found ", to_string(value.dtype()), to_string(value.shape()));
  require_gradients(doing);
  if (gradient_arena_.bytes() > 0 && (!gradients_ready_ || gradients_stale_))
    std::memset(gradient_arena_.raw(), 0, gradient_arena_.bytes());
  target.assign(target.gradient, value);
  wrote_gradients();
}

void CheckpointState::copy_gradients_to_buffer(const Tensor& buffer) const {
  constexpr const char* doing = "copying the gradients to a buffer";
  const std::vector<const Parameter*> order = gradient_order(buffer, doing);
  require(gradients_ready_, ErrorCode::kRuntimeException, doing,
          ": there are no gradients; run a train step first");
  std::byte* at = buffer.raw();
  for (const Parameter* parameter : order) {
    copy_gradient_of(*parameter, buffer.dtype(), at);
    at += bytes_of(buffer.dtype(), parameter->gradient.size());
  }
}

CheckpointState::GradientPlaces CheckpointState::gradient_places(const Tensor& buffer,
                                                                 const char* doing) const {
  GradientPlaces places;
  size_t first = 0;
  for (const Parameter* parameter : gradient_order(buffer, doing)) {
    const auto count = static_cast<size_t>(parameter->data.size());
    places[parameter->name] = {first, count};
    first += count;
  }
  return places;
}

void CheckpointState::copy_gradient(const std::string& name, const Tensor& buffer, size_t first) const {
  copy_gradient_of(parameter(name), buffer.dtype(),
                   buffer.raw() + bytes_of(buffer.dtype(), static_cast<int64_t>(first)));
}

void CheckpointState::copy_buffer_to_gradients(const Tensor& buffer) {
  constexpr const char* doing = "copying a buffer to the gradients";
  const std::vector<const Parameter*> order = gradient_order(buffer, doing);
  require_gradients(doing);
  std::byte* at = buffer.raw();
  for (const Parameter* parameter : order) {
    const Tensor& gradient = parameter->gradient;
    if (gradient.dtype() == buffer.dtype()) {
      parameter->assign(gradient, Tensor(gradient.dtype(), gradient.shape(), at));
    } else {
      const Tensor narrow(gradient.dtype(), gradient.shape());
      from_wide(gradient.dtype(), at, narrow.raw(), gradient.size());
      parameter->assign(gradient, narrow);
    }
    at += bytes_of(buffer.dtype(), gradient.size());
  }
  wrote_gradients();
}

void CheckpointState::set_buffer_order(const std::vector<std::string>& names) {
  std::vector<size_t> order;
  std::vector<bool> seen(parameters_.size(), false);
  for (const std::string& name : names) {
    const size_t i = static_cast<size_t>(&parameter(name) - parameters_.data());
    require(!seen[i], ErrorCode::kInvalidArgument, "the order of the parameters names \"", name, "\" twice");
    seen[i] = true;
    order.push_back(i);
  }
  for (size_t i = 0; i < seen.size(); ++i)
    require(seen[i], ErrorCode::kInvalidArgument, "the order of the parameters leaves out \"",
            parameters_[i].name, "\"");
  buffer_order_ = std::move(order);
}

void CheckpointState::set_nominal_shape(const std::string& name, const Shape& shape) {
  const Parameter& known = parameter(name);
  require(nominal_ || known.data.shape() == shape, ErrorCode::kInvalidArgument, "parameter \"", name,
          "\" has the shape ", to_string(known.data.shape()), " in the checkpoint, expected ",
          to_string(shape));
  if (known.data.shape() == shape) return;
  require(known.data.shape() == kUnknownShape, ErrorCode::kInvalidArgument, "parameter \"", name,
          "\" has the shape ", to_string(known.data.shape()), " in the checkpoint, expected ",
          to_string(shape));
  parameters_[index_.at(name)].data = Tensor(known.data.dtype(), shape, nullptr);
  data_arena_ = Tensor();
}

void CheckpointState::require_values(const std::string& doing, const char* what) const {
  require(!nominal_, ErrorCode::kInvalidArgument, doing,
          ": the checkpoint is nominal, its parameters have no values yet. Please load ", what,
          " first. Copying a buffer with all parameters does that.");
}

const Property& CheckpointState::property(const std::string& name) const {
  const auto found = properties_.find(name);
  if (found != properties_.end()) return found->second;
  std::string known;
  for (const auto& [key, value] : properties_) known += (known.empty() ? "" : ", ") + ("\"" + key + "\"");
  fail(ErrorCode::kInvalidArgument, "the checkpoint has no property \"", name, "\"; ",
       known.empty() ? "it has none at all" : "it has " + known);
}

// In these three functions, all that can fail is done before anything changes.
void CheckpointState::make_data_arenas(const CopyBytes& copy) {
  if (data_arena_.defined()) return;
  std::vector<Tensor> placed(parameters_.size());
  Tensor trainable_arena;
  for (const bool trainable : {true, false}) {
    const Places places = places_of(parameters_, trainable);
    const Tensor arena = new_arena(places);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& data = parameters_[i].data;
      if (parameters_[i].trainable == trainable)
        placed[i] = place(arena, places.offsets[i], data, data, copy);
    }
    if (trainable) trainable_arena = arena;
  }
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].data = std::move(placed[i]);
  data_arena_ = std::move(trainable_arena);
}

void CheckpointState::make_arenas() {
  if (is_mapped()) return;
  make_data_arenas();
  if (gradient_arena_.defined()) return;
  const Places places = places_of(parameters_, true);
  Tensor arena = new_arena(places);
  std::vector<Tensor> placed(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].trainable)
      placed[i] = place(arena, places.offsets[i], parameters_[i].data, Tensor(), std::memcpy);
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].trainable) parameters_[i].gradient = std::move(placed[i]);
  gradient_arena_ = std::move(arena);
}

void CheckpointState::set_layouts(const std::unordered_map<std::string, LayoutPtr>& layouts) {
  bool changed = false;
  for (Parameter& parameter : parameters_) {
    if (!parameter.trainable) continue;
    const auto found = layouts.find(parameter.name);
    if (found == layouts.end()) row_major_.insert(parameter.name);
    const bool is_usual =
        std::all_of(parameter.moments.begin(), parameter.moments.end(),
                    [&](const Tensor& m) { return have_one_form(m, usual_moment(parameter)); });
    if (!is_usual) row_major_.insert(parameter.name);
    const LayoutPtr layout = row_major_.contains(parameter.name) ? nullptr : found->second;
    if (same_layout(parameter.layout, layout)) continue;
    // Everything that can fail is done before the first element moves.
    const size_t bytes = parameter.data.bytes();
    const Tensor plain(parameter.data.dtype(), parameter.data.shape());
    const auto copy = [bytes](const Frame& f) {
      std::memcpy(f.at<std::byte>({1}), f.at<std::byte>({0}), bytes);
    };
    const Kernel to_plain = parameter.layout ? parameter.layout->to_plain({0}, {1}) : Kernel(copy);
    const Kernel from_plain = layout ? layout->from_plain({0}, {1}) : Kernel(copy);
    const auto reorder = [&](const Tensor& stored) {
      if (stored.raw() == nullptr) return;
      run(to_plain, stored.raw(), plain.raw());
      run(from_plain, plain.raw(), stored.raw());
    };
    reorder(parameter.data);
    reorder(parameter.gradient);
    for (const Tensor& moment : parameter.moments) reorder(moment);
    parameter.layout = layout;
    changed = true;
  }
  if (changed) ++layouts_version_;
}

void CheckpointState::make_moments(const std::vector<std::string>& names, const MomentForm& form) {
  for (const Parameter& parameter : parameters_)
    for (size_t m = 0; m < std::min(names.size(), parameter.moments.size()); ++m) {
      const Tensor wanted = form(parameter, m), &found = parameter.moments[m];
      require(have_one_form(wanted, found), ErrorCode::kInvalidArgument,
              "the checkpoint's optimizer state \"", names[m], "\" of parameter \"", parameter.name,
              "\" should be ", to_string(wanted.dtype()), to_string(wanted.shape()), ", found ",
              to_string(found.dtype()), to_string(found.shape()),
              "; it was created with other settings of the optimizer, or by an earlier version");
    }
  make_moments(static_cast<int>(names.size()), std::memcpy, form);
  optimizer_.state_names = names;
}

void CheckpointState::make_moments(int count, const CopyBytes& copy, const MomentForm& form) {
  const auto like = [&](const Parameter& parameter, size_t m) {
    if (m < parameter.moments.size())
      return Tensor(parameter.moments[m].dtype(), parameter.moments[m].shape(), nullptr);
    return form ? form(parameter, m) : usual_moment(parameter);
  };
  // onnxruntime-training 1.19.2 saves one moment for its SGD, which uses none and never reads it.
  if (count == 0)
    for (Parameter& parameter : parameters_)
      if (parameter.moments.size() == 1) parameter.moments.clear();
  for (const Parameter& parameter : parameters_)
    require(!parameter.trainable || parameter.moments.empty() ||
                parameter.moments.size() == static_cast<size_t>(count),
            ErrorCode::kInvalidArgument, "the checkpoint's optimizer state has ",
            counted(parameter.moments.size(), "moment"), " for each parameter, but the optimizer keeps ",
            count, "; it was created with another optimizer. To switch, save it without optimizer state");
  if (is_mapped()) return;
  if (moment_arenas_.size() != static_cast<size_t>(count)) {
    std::vector<Tensor> arenas;
    std::vector<Places> places;
    for (size_t m = 0; m < static_cast<size_t>(count); ++m) {
      places.push_back(places_of(parameters_, true, [&](const Parameter& p) { return like(p, m); }));
      arenas.push_back(new_arena(places.back()));
    }
    std::vector<std::vector<Tensor>> placed(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& parameter = parameters_[i];
      if (!parameter.trainable) continue;
      for (size_t m = 0; m < arenas.size(); ++m) {
        const Tensor source = m < parameter.moments.size() ? parameter.moments[m] : Tensor();
        placed[i].push_back(place(arenas[m], places[m].offsets[i], like(parameter, m), source, copy));
      }
    }
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].trainable) parameters_[i].moments = std::move(placed[i]);
    moment_arenas_ = std::move(arenas);
  }
  has_optimizer_ = true;
}

}  // namespace ortrain
