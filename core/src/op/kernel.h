// Kernel: one prepared step of a Program, and the data it can access when it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace ortrain {

// A place in the memory of a Program; its address is known when the Program runs.
struct Slot {
  int index = -1;
  bool defined() const { return index >= 0; }
};

// One run: the address of every slot, and the number of the run (the counter of random operators).
class Frame {
 public:
  Frame(std::byte* const* addresses, uint64_t run) : addresses_(addresses), run_(run) {}

  template <typename T>
  T* at(Slot slot) const {
    return reinterpret_cast<T*>(addresses_[slot.index]);
  }
  // Like at(), but null for an undefined slot.
  template <typename T>
  T* at_or_null(Slot slot) const {
    return slot.defined() ? at<T>(slot) : nullptr;
  }
  uint64_t run() const { return run_; }

 private:
  std::byte* const* addresses_;
  uint64_t run_;
};

// A function that does the work of one step. Everything that does not depend on the run was decided when the
// kernel was created.
//
// Unlike a std::function, a kernel cannot be copied: for copies, the library would need a function and a type
// name for each of hundreds of callables, in total 3 % of its size.
class Kernel {
 public:
  Kernel() = default;
  Kernel(std::nullptr_t) {}
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, Kernel> && std::is_invocable_v<std::decay_t<F>&, const Frame&>)
      Kernel(F&& work)
      : work_(new std::decay_t<F>(std::forward<F>(work)), release<std::decay_t<F>>()),
        run_([](void* w, const Frame& f) { (*static_cast<std::decay_t<F>*>(w))(f); }) {}

  explicit operator bool() const { return work_ != nullptr; }
  void operator()(const Frame& f) const { run_(work_.get(), f); }

 private:
  using Release = void (*)(void*);

  template <class F>
  static constexpr Release release() {
    if constexpr (std::is_trivially_destructible_v<F> && alignof(F) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__)
      return free_memory;
    else
      return destroy<F>;
  }
  template <class F>
  [[gnu::cold]] static void destroy(void* work) {
    delete static_cast<F*>(work);
  }
  // For all callables that have nothing to destroy.
  static void free_memory(void* work) { ::operator delete(work); }

  std::unique_ptr<void, Release> work_{nullptr, nullptr};
  void (*run_)(void*, const Frame&) = nullptr;
};

inline Kernel chain(Kernel first, Kernel second) {
  return [first = std::move(first), second = std::move(second)](const Frame& f) {
    first(f);
    second(f);
  };
}
inline Kernel chain(std::vector<Kernel> kernels) {
  if (kernels.size() == 1) return std::move(kernels[0]);
  return [kernels = std::move(kernels)](const Frame& f) {
    for (const Kernel& kernel : kernels) kernel(f);
  };
}

// How a Program computes with values of type float (the session option ortrain.mixed_precision).
enum class Precision {
  kFloat,
  kBf16Storage,  // values between operators may be stored in bfloat16; all arithmetic is float
  kBf16,         // matrix products and convolutions also take bfloat16 operands, and accumulate in float
};

// How a value's elements are stored in memory when not row-major: the blocked formats of a kernel library, or
// a private format in which one operator leaves data for another.
class Layout {
 public:
  virtual ~Layout() = default;
  virtual size_t bytes() const = 0;
  virtual bool equals(const Layout& other) const = 0;
  // An address that identifies the class, for layout_as: the library has no run-time type information.
  virtual const void* kind() const { return nullptr; }
  // True if the memory holds the elements of the value and nothing else (no padding), in any order:
  // elementwise kernels may then treat it as flat.
  virtual bool dense() const = 0;
  // True if the elements of a value of type float are stored as bfloat16. Its type remains float.
  virtual bool bf16() const { return false; }
  // The layout that reads the same bytes as a value of another shape; null if there is none.
  virtual std::shared_ptr<const Layout> reshaped(const std::vector<int64_t>& shape) const {
    return (void)shape, nullptr;
  }
  // Kernels that convert; `plain` is row-major.
  virtual Kernel to_plain(Slot from, Slot plain) const = 0;
  virtual Kernel from_plain(Slot plain, Slot to) const = 0;
  // A kernel that converts directly from another layout; null if there is none (then the conversion goes
  // through plain).
  virtual Kernel from(const Layout& other, Slot source, Slot to) const {
    (void)other, (void)source, (void)to;
    return nullptr;
  }
};

using LayoutPtr = std::shared_ptr<const Layout>;  // null: row-major

// The layout as an object of a class whose kind() is &kKind; null if it belongs to another class.
template <typename Class>
const Class* layout_as(const Layout* layout) {
  return layout && layout->kind() == &Class::kKind ? static_cast<const Class*>(layout) : nullptr;
}

inline bool same_layout(const LayoutPtr& a, const LayoutPtr& b) {
  return a == b || (a && b && a->equals(*b));
}

}  // namespace ortrain
