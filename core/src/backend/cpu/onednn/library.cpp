// What oneDNN provides for the CPU besides implementations of operators.
#include <dnnl.hpp>

#include <algorithm>
#include <cstdlib>
#include <optional>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/onednn/kernels.h"
#include "runtime/fork_lock.h"

namespace ortrain {
namespace {

// Some virtual machines report AMX but hide the list of its tile palettes. oneDNN then leaves the tiles
// unconfigured, and its first bfloat16 product ends the process. On these machines AMX is disabled, unless
// the user has set the instruction set. oneDNN accepts the limit only before its first call.
[[maybe_unused]] const bool amx_disabled = [] {
#if defined(__x86_64__) || defined(__i386__)
  constexpr unsigned kFeatures = 7, kHasTiles = 1u << 24, kTiles = 0x1d;
  unsigned most_palettes = 0, b = 0, c = 0, features = 0, unused = 0;
  const bool has_tiles = __get_cpuid_count(kFeatures, 0, &unused, &b, &c, &features) && features & kHasTiles;
  const bool listed = __get_cpuid_count(kTiles, 0, &most_palettes, &b, &c, &unused) && most_palettes > 0;
  if (!has_tiles || listed || std::getenv("ONEDNN_MAX_CPU_ISA") || std::getenv("DNNL_MAX_CPU_ISA"))
    return false;
  return dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_fp16) == dnnl::status::success;
#else
  return false;
#endif
}();

LayoutPtr bf16_row_major(const Shape& shape) { return dnnl_layout(dnnl_plain(shape, DnnlType::bf16)); }

LayoutPtr bf16_layout(const KernelContext& c, size_t i) {
  if (const LayoutPtr layout = c.in_layout(i); layout && layout->dense())
    if (const auto desc = dnnl_stored(c, i, DnnlType::bf16)) return dnnl_layout(*desc);
  return bf16_row_major(c.shape(i));
}

Bf16Products onednn_products() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl::cpu_isa wanted) {
    return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
  };
  if (has(dnnl::cpu_isa::avx512_core_amx)) return Bf16Products::kFast;
  if (!has(dnnl::cpu_isa::avx512_core)) return Bf16Products::kNotStored;
  if (!has(dnnl::cpu_isa::avx512_core_bf16)) return Bf16Products::kNone;
    // Intel's cores since Golden Cove begin one VDPBF16PS every other cycle, but two float multiply-adds in
    // each cycle: half as many products in the same time. Their fast path is AMX, which a virtual machine may
    // hide. They are recognized by their float16 instructions.
#if defined(__x86_64__) || defined(__i386__)
  if (has(dnnl::cpu_isa::avx512_core_fp16) && __builtin_cpu_is("intel")) return Bf16Products::kSlow;
#endif
  return Bf16Products::kFast;
}

bool product(int64_t m, int64_t n, int64_t k, float alpha, MatrixView<const float> a,
             MatrixView<const float> b, float beta, float* y, int64_t y_row) {
  const bool a_trans = a.row == 1 && a.column != 1, b_trans = b.row == 1 && b.column != 1;
  // Leading dimensions: at least the length of a line, even if there is only one line.
  const int64_t a_lead = a_trans ? std::max(a.column, m) : std::max(a.row, k);
  const int64_t b_lead = b_trans ? std::max(b.column, k) : std::max(b.row, n);
  // The first product of a kind generates code.
  thread_local bool generated[2][2][2] = {};
  bool& known = generated[a_trans][b_trans][beta != 0];
  std::optional<NoFork> scope;
  if (!known) scope.emplace();
  known = true;
  return dnnl_sgemm(a_trans ? 'T' : 'N', b_trans ? 'T' : 'N', m, n, k, alpha, a.data, a_lead, b.data, b_lead,
                    beta, y, std::max(y_row, n)) == dnnl_success;
}

}  // namespace

const KernelLibrary kOnednn = {
    "oneDNN", bf16_row_major, bf16_layout, onednn_products, product,
};

}  // namespace ortrain
