// oneDNN in kernels: one engine, its layouts as Layout, and primitives that run on slots without allocating.
#pragma once

#include <dnnl.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "op/kernel.h"
#include "op/operator.h"
#include "runtime/shape.h"

namespace ortrain {

const dnnl::engine& dnnl_engine();
dnnl::stream& dnnl_stream();  // of the calling thread

using DnnlType = dnnl::memory::data_type;

// Row-major description of a shape; a scalar is described as one element.
dnnl::memory::desc dnnl_plain(const Shape& shape, DnnlType type = DnnlType::f32);
// Let the primitive choose.
dnnl::memory::desc dnnl_any(const Shape& shape, DnnlType type = DnnlType::f32);
// Channels innermost (NHWC and similar), for shapes [N, C, spatial...] with up to three spatial axes.
dnnl::memory::desc dnnl_channels_last(const Shape& shape, DnnlType type = DnnlType::f32);
// The same order for elements of another type; nothing for orders that values between operators never have.
std::optional<dnnl::memory::desc> dnnl_retyped(const dnnl::memory::desc& desc, DnnlType type);
// True if both describe the same bytes: strides of axes of size 1 do not matter.
bool same_bytes(const dnnl::memory::desc& a, const dnnl::memory::desc& b);
// True if the memory holds the elements and nothing else.
bool is_dense(const dnnl::memory::desc& desc);

// A layout that oneDNN chose.
class DnnlLayout : public Layout {
 public:
  explicit DnnlLayout(dnnl::memory::desc desc) : desc_(std::move(desc)) {}
  size_t bytes() const override { return desc_.get_size(); }
  bool equals(const Layout& other) const override;
  bool dense() const override { return is_dense(desc_); }
  bool bf16() const override { return desc_.get_data_type() == DnnlType::bf16; }
  LayoutPtr reshaped(const Shape& shape) const override;
  Kernel to_plain(Slot from, Slot plain) const override;
  Kernel from_plain(Slot plain, Slot to) const override;
  Kernel from(const Layout& other, Slot source, Slot to) const override;
  const dnnl::memory::desc& desc() const { return desc_; }

 private:
  dnnl::memory::desc desc_;
};

// The layout of a description; null if it is row-major float.
LayoutPtr dnnl_layout(const dnnl::memory::desc& desc);
// The description of a stored value: its layout's, or the row-major one of `shape`. Throws for layouts that
// are not oneDNN's.
dnnl::memory::desc dnnl_desc(const LayoutPtr& layout, const Shape& shape);
// Whether the layout is one of ours (or row-major).
bool is_dnnl(const LayoutPtr& layout);
// How input i is stored, described with elements of the given type; nothing if that cannot be described.
std::optional<dnnl::memory::desc> dnnl_stored(const KernelContext& c, size_t i, DnnlType type);

// An attribute with user-managed scratchpad: primitives then allocate nothing when they run.
dnnl::primitive_attr dnnl_attr();
// Whether a primitive is one of oneDNN's optimized ones rather than its reference loops.
bool is_fast(const dnnl::primitive_desc_base& primitive);

// A kernel that runs the primitive: each argument is in a slot; undefined slots are omitted. The scratchpad
// is taken from `c`.
struct DnnlArgument {
  int index;  // DNNL_ARG_SRC ...
  dnnl::memory::desc desc;
  Slot slot;
  size_t offset = 0;  // in bytes, of the argument in its slot
};
Kernel dnnl_kernel(KernelContext& c, const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                   const std::vector<DnnlArgument>& arguments);
// Input i in the order and type that a primitive needs. If the primitive computes in float with a value
// stored in bfloat16, a kernel added to `kernels` widens the value into scratch memory: a shared copy would
// be kept until its last reader.
Slot dnnl_operand(KernelContext& c, size_t i, const dnnl::memory::desc& wanted, std::vector<Kernel>& kernels);
// The memory of output o for a primitive that produces it as `made`. If float is produced but bfloat16
// wanted, this is scratch memory, and a kernel that narrows it is added to `after`.
Slot dnnl_result(KernelContext& c, size_t o, const dnnl::memory::desc& made, std::vector<Kernel>& after);

// A kernel that copies between two descriptions.
Kernel dnnl_reorder(const dnnl::memory::desc& from, Slot source, const dnnl::memory::desc& to, Slot target);

}  // namespace ortrain
