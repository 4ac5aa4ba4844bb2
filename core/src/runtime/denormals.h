// Arithmetic on denormal numbers (below 1e-38 in float) can take a processor a hundred times as long as on
// others. A thread can treat them as zero, as operands and as results.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace ortrain {

// The calling thread's mode of floating-point arithmetic.
class FloatMode {
 public:
#if defined(__SSE2__)
  static FloatMode current() { return FloatMode(_mm_getcsr()); }
  FloatMode flushing() const { return FloatMode(bits_ | 0x8040); }  // results and operands
  void set() const { _mm_setcsr(static_cast<unsigned>(bits_)); }
#elif defined(__aarch64__)
  static FloatMode current() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return FloatMode(bits);
  }
  FloatMode flushing() const { return FloatMode(bits_ | uint64_t{1} << 24); }
  void set() const { asm volatile("msr fpcr, %0" : : "r"(bits_)); }
#else
  static FloatMode current() { return FloatMode(0); }
  FloatMode flushing() const { return *this; }
  void set() const {}
#endif

 private:
  explicit FloatMode(uint64_t bits) : bits_(bits) {}
  [[maybe_unused]] uint64_t bits_;
};

// While it exists, denormal numbers count as zero on this thread, and on all threads that share its parallel
// work, which take its mode (runtime/thread_pool.h). With `wanted` false it does nothing.
class DenormalsAsZero {
 public:
  explicit DenormalsAsZero(bool wanted) : before_(FloatMode::current()), wanted_(wanted) {
    if (wanted_) before_.flushing().set();
  }
  ~DenormalsAsZero() {
    if (wanted_) before_.set();
  }
  DenormalsAsZero(const DenormalsAsZero&) = delete;
  DenormalsAsZero& operator=(const DenormalsAsZero&) = delete;

 private:
  FloatMode before_;
  bool wanted_;
};

}  // namespace ortrain
