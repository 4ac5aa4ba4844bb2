#include "backend/cpu/onednn/dnnl.h"

#include <cstring>
#include <memory>
#include <string_view>

#include "backend/cpu/onednn/kernels.h"
#include "runtime/fork_lock.h"
#include "runtime/memory_in_use.h"

namespace ortrain {

namespace {

using dnnl::memory;

// oneDNN reports most failures without their reason. Memory is taken to be the reason if none is left for
// what it allocates at least: generated code.
bool is_short_of_memory(dnnl_status_t status) {
  return status == dnnl_out_of_memory || !can_allocate(size_t{1} << 20);
}

[[noreturn]] void fail_dnnl(const std::string& doing, dnnl_status_t status, const char* reason = "") {
  if (is_short_of_memory(status))
    fail(ErrorCode::kFail, "out of memory: oneDNN failed while ", doing, memory_in_use());
  fail(ErrorCode::kRuntimeException, "oneDNN failed while ", doing, ": ", reason, *reason ? ", " : "",
       "status ", static_cast<int>(status));
}

memory::dims dims_of(const Shape& shape) { return shape.empty() ? memory::dims{1} : memory::dims(shape); }

// A primitive with its arguments in the form that the C API takes. Memory objects hold the address of the
// last run: Programs share arenas, so an address may have moved since. The stream is its own, because a
// thread that runs a part of a region may run its first primitive in any step, where nothing may be
// allocated.
class BoundPrimitive {
 public:
  BoundPrimitive(const dnnl::primitive& primitive, const std::vector<DnnlArgument>& arguments)
      : primitive_(primitive) {
    for (const DnnlArgument& a : arguments) {
      if (!a.slot.defined()) continue;
      memories_.push_back(memory(a.desc, dnnl_engine(), DNNL_MEMORY_NONE));
      slots_.push_back(a.slot);
      offsets_.push_back(a.offset);
      addresses_.push_back(nullptr);
      arguments_.push_back({a.index, memories_.back().get()});
    }
  }

  void run(const Frame& frame) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      void* address = frame.at<std::byte>(slots_[i]) + offsets_[i];
      if (address == addresses_[i]) continue;
      const dnnl_status_t status = dnnl_memory_set_data_handle(arguments_[i].memory, address);
      if (status != dnnl_success) fail_dnnl("binding memory", status);
      addresses_[i] = address;
    }
    const dnnl_status_t status = dnnl_primitive_execute(
        primitive_.get(), stream_.get(), static_cast<int>(arguments_.size()), arguments_.data());
    if (status != dnnl_success) fail_dnnl("running a primitive", status);
  }

 private:
  dnnl::primitive primitive_;
  dnnl::stream stream_{dnnl_engine()};
  std::vector<memory> memories_;
  std::vector<Slot> slots_;
  std::vector<size_t> offsets_;
  std::vector<void*> addresses_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

Kernel bind_primitive(const dnnl::primitive& primitive, const std::vector<DnnlArgument>& arguments) {
  auto bound = std::make_shared<BoundPrimitive>(primitive, arguments);
  return [bound](const Frame& f) { bound->run(f); };
}

}  // namespace

const dnnl::engine& dnnl_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& dnnl_stream() {
  thread_local dnnl::stream stream(dnnl_engine());
  return stream;
}

memory::desc dnnl_plain(const Shape& shape, DnnlType type) {
  const memory::dims dims = dims_of(shape);
  return {dims, type, memory::dims(strides_of(dims))};
}

memory::desc dnnl_any(const Shape& shape, DnnlType type) {
  return {dims_of(shape), type, memory::format_tag::any};
}

memory::desc dnnl_channels_last(const Shape& shape, DnnlType type) {
  memory::dims strides(shape.size());
  int64_t step = shape[1];
  for (size_t i = shape.size(); i-- > 2;) {
    strides[i] = step;
    step *= shape[i];
  }
  strides[1] = 1;
  strides[0] = step;
  return {shape, type, strides};
}

std::optional<memory::desc> dnnl_retyped(const memory::desc& desc, DnnlType type) {
  if (desc.get_data_type() == type) return desc;
  if (desc.get_format_kind() != memory::format_kind::blocked || desc.get_submemory_offset() != 0)
    return std::nullopt;
  if (desc.get_inner_nblks() == 0) return memory::desc(desc.get_dims(), type, desc.get_strides());
  using Tag = memory::format_tag;
  static constexpr Tag kBlocked[][3] = {{Tag::aBc16b, Tag::aBc8b, Tag::aBc4b},
                                        {Tag::aBcd16b, Tag::aBcd8b, Tag::aBcd4b},
                                        {Tag::aBcde16b, Tag::aBcde8b, Tag::aBcde4b}};
  const int axes = desc.get_ndims();
  if (axes < 3 || axes > 5) return std::nullopt;
  for (const Tag tag : kBlocked[axes - 3])
    if (same_bytes(desc, {desc.get_dims(), desc.get_data_type(), tag}))
      return memory::desc(desc.get_dims(), type, tag);
  return std::nullopt;
}

bool same_bytes(const memory::desc& a, const memory::desc& b) {
  if (a == b) return true;
  if (a.get_format_kind() != memory::format_kind::blocked ||
      b.get_format_kind() != memory::format_kind::blocked)
    return false;
  if (a.get_dims() != b.get_dims() || a.get_padded_dims() != b.get_padded_dims() ||
      a.get_data_type() != b.get_data_type() || a.get_inner_blks() != b.get_inner_blks() ||
      a.get_inner_idxs() != b.get_inner_idxs() || a.get_submemory_offset() != b.get_submemory_offset())
    return false;
  const memory::dims padded = a.get_padded_dims(), x = a.get_strides(), y = b.get_strides();
  const memory::dims blocks = a.get_inner_blks(), axes = a.get_inner_idxs();
  for (size_t i = 0; i < padded.size(); ++i) {
    int64_t outer = padded[i];
    for (size_t k = 0; k < blocks.size(); ++k)
      if (axes[k] == static_cast<int64_t>(i)) outer /= blocks[k];
    if (outer > 1 && x[i] != y[i]) return false;
  }
  return true;
}

bool is_dense(const memory::desc& desc) {
  return desc.get_format_kind() == memory::format_kind::blocked && desc.get_submemory_offset() == 0 &&
         desc.get_size() == static_cast<size_t>(element_count(desc.get_dims())) *
                                memory::data_type_size(desc.get_data_type());
}

bool DnnlLayout::equals(const Layout& other) const {
  const auto* o = dynamic_cast<const DnnlLayout*>(&other);
  return o && same_bytes(desc_, o->desc_);
}

LayoutPtr DnnlLayout::reshaped(const Shape& shape) const {
  if (!bf16() || !same_bytes(desc_, dnnl_plain(desc_.get_dims(), DnnlType::bf16))) return nullptr;
  return dnnl_layout(dnnl_plain(shape, DnnlType::bf16));
}

Kernel DnnlLayout::to_plain(Slot from, Slot plain) const {
  return dnnl_reorder(desc_, from, dnnl_plain(desc_.get_dims()), plain);
}

Kernel DnnlLayout::from_plain(Slot plain, Slot to) const {
  return dnnl_reorder(dnnl_plain(desc_.get_dims()), plain, desc_, to);
}

Kernel DnnlLayout::from(const Layout& other, Slot source, Slot to) const {
  const auto* o = dynamic_cast<const DnnlLayout*>(&other);
  return o ? dnnl_reorder(o->desc_, source, desc_, to) : nullptr;
}

LayoutPtr dnnl_layout(const memory::desc& desc) {
  if (same_bytes(desc, dnnl_plain(desc.get_dims()))) return nullptr;
  return std::make_shared<DnnlLayout>(desc);
}

memory::desc dnnl_desc(const LayoutPtr& layout, const Shape& shape) {
  if (!layout) return dnnl_plain(shape);
  const auto* l = dynamic_cast<const DnnlLayout*>(layout.get());
  require(l != nullptr, ErrorCode::kFail, "a value of shape ", to_string(shape),
          " is stored in a layout that is not oneDNN's");
  return l->desc();
}

bool is_dnnl(const LayoutPtr& layout) {
  return !layout || dynamic_cast<const DnnlLayout*>(layout.get()) != nullptr;
}

std::optional<memory::desc> dnnl_stored(const KernelContext& c, size_t i, DnnlType type) {
  const LayoutPtr layout = c.in_layout(i);
  if (!is_dnnl(layout)) return std::nullopt;
  return dnnl_retyped(dnnl_desc(layout, c.shape(i)), type);
}

dnnl::primitive_attr dnnl_attr() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

void report_onednn(const KernelContext& c) {
  size_t bytes = 0;
  for (size_t i = 0; i < c.input_count(); ++i)
    if (c.has_input(i)) bytes += bytes_of(c.dtype(i), c.size(i));
  for (size_t o = 0; o < c.output_count(); ++o)
    if (c.has_output(o)) bytes += bytes_of(c.out_dtype(o), c.out_size(o));
  const std::string doing = concat("making a kernel for inputs and outputs of ", bytes, " bytes");
  try {
    throw;
  } catch (const dnnl::error& error) {
    fail_dnnl(doing, error.status, error.what());
  } catch (const std::bad_alloc&) {
    fail_dnnl(doing, dnnl_out_of_memory);
  } catch (const std::exception& error) {
    fail_dnnl(doing, dnnl_runtime_error, error.what());
  }
}

bool suits_onednn(const NodeContext& c) {
  if (c.dtype(0) != DType::kFloat) return false;
  bool all_constant = true;
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (!c.has_input(i)) continue;
    if (is_floating(c.dtype(i)) && (c.dtype(i) != DType::kFloat || c.size(i) == 0)) return false;
    if (!c.constant(i)) all_constant = false;
  }
  return !all_constant;
}

bool is_fast(const dnnl::primitive_desc_base& primitive) {
  const std::string_view name = primitive.impl_info_str();
  return !name.starts_with("ref") && !name.starts_with("gemm") && !name.starts_with("simple") &&
         !name.starts_with("ncsp");
}

Kernel dnnl_kernel(KernelContext& c, const dnnl::primitive& primitive, const memory::desc& scratchpad,
                   const std::vector<DnnlArgument>& arguments) {
  std::vector<DnnlArgument> all = arguments;
  if (const size_t bytes = scratchpad.get_size(); bytes > 0)
    all.push_back({DNNL_ARG_SCRATCHPAD, scratchpad, c.scratch(bytes)});
  return bind_primitive(primitive, all);
}

Slot dnnl_operand(KernelContext& c, size_t i, const memory::desc& wanted, std::vector<Kernel>& kernels) {
  const LayoutPtr stored = c.in_layout(i);
  if (!stored || !stored->bf16() || wanted.get_data_type() != DnnlType::f32)
    return c.in(i, dnnl_layout(wanted));
  const Slot narrow = c.in(i, stored), wide = c.scratch(wanted.get_size());
  kernels.push_back(dnnl_reorder(dnnl_desc(stored, c.shape(i)), narrow, wanted, wide));
  return wide;
}

Slot dnnl_result(KernelContext& c, size_t o, const memory::desc& made, std::vector<Kernel>& after) {
  if (made.get_data_type() == DnnlType::f32 && c.wants_bf16(o))
    if (const auto kept = dnnl_retyped(made, DnnlType::bf16)) {
      const Slot wide = c.scratch(made.get_size()), narrow = c.out(o, dnnl_layout(*kept));
      after.push_back(dnnl_reorder(made, wide, *kept, narrow));
      return wide;
    }
  return c.out(o, dnnl_layout(made));
}

Kernel dnnl_reorder(const memory::desc& from, Slot source, const memory::desc& to, Slot target) {
  if (same_bytes(from, to)) {
    return [source, target, bytes = from.get_size()](const Frame& f) {
      if (bytes > 0) std::memcpy(f.at<std::byte>(target), f.at<std::byte>(source), bytes);
    };
  }
  const NoFork scope;
  // Reorders between float layouts need no scratchpad of ours: oneDNN keeps a few bytes on the stack or none
  // at all.
  try {
    const dnnl::reorder::primitive_desc pd(dnnl_engine(), from, dnnl_engine(), to);
    return bind_primitive(dnnl::reorder(pd), {{DNNL_ARG_FROM, from, source}, {DNNL_ARG_TO, to, target}});
  } catch (const dnnl::error& error) {
    fail_dnnl(concat("preparing the conversion of a value of ", from.get_size(), " bytes to another layout"),
              error.status, error.what());
  }
}

}  // namespace ortrain
