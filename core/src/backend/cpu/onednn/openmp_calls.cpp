// oneDNN's parallel regions on our threads. The library is compiled for GCC's OpenMP, whose threads spin
// while they wait, whether or not another program wants the processor; two pools would also take the
// processors from each other.
//
// The loader has resolved oneDNN's calls of OpenMP to GCC's library, or to that of the program. They are
// replaced by ours where the loader put them, in oneDNN's table of addresses: exporting functions of the same
// names would affect the program's own regions. If oneDNN calls anything that we do not have, it keeps
// OpenMP.
#if ORTRAIN_OWN_THREADS

#include <dnnl.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/thread_pool.h"

namespace ortrain {
namespace {

int count(unsigned threads) { return threads > 0 ? static_cast<int>(threads) : regions::wanted_threads(); }

// Its parts may wait for each other.
void parallel_start(void (*work)(void*), void* data, unsigned threads) {
  regions::start(work, data, count(threads), true);
}
void parallel_end() { regions::finish(); }
void parallel(void (*work)(void*), void* data, unsigned threads, unsigned) {
  regions::start(work, data, count(threads), true);
  work(data);
  regions::finish();
}
int max_threads() { return regions::wanted_threads(); }
int num_threads() { return regions::parts(); }
int thread_num() { return regions::part(); }
int in_parallel() { return regions::inside() ? 1 : 0; }

// A loop over [begin, end) with a static schedule: the next iterations of the calling thread.
struct Loop {
  int64_t next = 0, count = 0;  // iterations, of all parts
  int64_t chunk = 0, stride = 0;
  int64_t begin = 0, step = 1;
};
thread_local Loop loop;

bool loop_next(long* first, long* last) {
  if (loop.next >= loop.count) return false;
  *first = loop.begin + loop.next * loop.step;
  *last = loop.begin + std::min(loop.next + loop.chunk, loop.count) * loop.step;
  loop.next += loop.stride;
  return true;
}
bool loop_start(long begin, long end, long step, long chunk, long* first, long* last) {
  const int64_t parts = regions::parts(), part = regions::part();
  const int64_t count = std::max<int64_t>(0, (end - begin + step + (step > 0 ? -1 : 1)) / step);
  if (chunk > 0) {
    loop = {part * chunk, count, chunk, parts * chunk, begin, step};
  } else {  // one chunk for each part, the first ones longer by one
    const int64_t each = count / parts, longer = count % parts;
    const int64_t mine = each + (part < longer ? 1 : 0), at = part * each + std::min(part, longer);
    loop = {at, at + mine, mine, mine, begin, step};
  }
  return loop_next(first, last);
}
void loop_end() {}

template <typename F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);
}

void* replacement(std::string_view name) {
  static const std::pair<std::string_view, void*> known[] = {
      {"GOMP_parallel_start", address(parallel_start)},
      {"GOMP_parallel_end", address(parallel_end)},
      {"GOMP_parallel", address(parallel)},
      {"GOMP_barrier", address(regions::barrier)},
      {"GOMP_loop_static_start", address(loop_start)},
      {"GOMP_loop_static_next", address(loop_next)},
      {"GOMP_loop_end_nowait", address(loop_end)},
      {"omp_get_max_threads", address(max_threads)},
      {"omp_get_num_threads", address(num_threads)},
      {"omp_get_thread_num", address(thread_num)},
      {"omp_in_parallel", address(in_parallel)},
  };
  for (const auto& [call, ours] : known)
    if (call == name) return ours;
  return nullptr;
}

#if defined(__x86_64__)
constexpr unsigned kJump = R_X86_64_JUMP_SLOT, kData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJump = R_AARCH64_JUMP_SLOT, kData = R_AARCH64_GLOB_DAT;
#endif

// A loaded library: its tables of relocations, and the part of its memory that the loader made read-only.
struct Library {
  uintptr_t base = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  std::vector<std::pair<const ElfW(Rela)*, size_t>> relocations;
  uintptr_t protected_begin = 0, protected_end = 0;

  explicit Library(const dl_phdr_info& info) : base(info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const auto& header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) read(reinterpret_cast<const ElfW(Dyn)*>(base + header.p_vaddr));
      if (header.p_type == PT_GNU_RELRO) {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        protected_begin = (base + header.p_vaddr) & ~(page - 1);
        protected_end = (base + header.p_vaddr + header.p_memsz) & ~(page - 1);
      }
    }
  }

  void read(const ElfW(Dyn) * entry) {
    const ElfW(Rela)* jumps = nullptr;
    const ElfW(Rela)* others = nullptr;
    size_t jump_bytes = 0, other_bytes = 0;
    for (; entry->d_tag != DT_NULL; ++entry) {
      const auto at = entry->d_un.d_ptr;
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at);
      if (entry->d_tag == DT_JMPREL) jumps = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_RELA) others = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_PLTRELSZ) jump_bytes = entry->d_un.d_val;
      if (entry->d_tag == DT_RELASZ) other_bytes = entry->d_un.d_val;
    }
    relocations = {{jumps, jump_bytes / sizeof *jumps}, {others, other_bytes / sizeof *others}};
  }

  // Its calls of OpenMP: where their addresses are, and what should be there. Empty if one is not known.
  std::vector<std::pair<void**, void*>> calls() const {
    std::vector<std::pair<void**, void*>> found;
    for (const auto& [first, count] : relocations)
      for (size_t i = 0; i < count; ++i) {
        const auto type = ELF64_R_TYPE(first[i].r_info);
        if (type != kJump && type != kData) continue;
        const std::string_view name = names + symbols[ELF64_R_SYM(first[i].r_info)].st_name;
        if (!name.starts_with("GOMP_") && !name.starts_with("omp_")) continue;
        void* const ours = replacement(name);
        if (!ours) return {};
        found.emplace_back(reinterpret_cast<void**>(base + first[i].r_offset), ours);
      }
    return found;
  }

  void replace(const std::vector<std::pair<void**, void*>>& calls) const {
    const auto protect = [&](int how) {
      return protected_begin == protected_end ||
             mprotect(reinterpret_cast<void*>(protected_begin), protected_end - protected_begin, how) == 0;
    };
    if (!protect(PROT_READ | PROT_WRITE)) return;
    for (const auto& [at, ours] : calls) *at = ours;
    protect(PROT_READ);
  }
};

bool contains(const dl_phdr_info& info, uintptr_t at) {
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const auto& header = info.dlpi_phdr[i];
    const uintptr_t begin = info.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_LOAD && begin <= at && at < begin + header.p_memsz) return true;
  }
  return false;
}

int redirect(dl_phdr_info* info, size_t, void*) {
  if (!contains(*info, reinterpret_cast<uintptr_t>(&dnnl_version))) return 0;
  const Library library(*info);
  library.replace(library.calls());
  return 1;
}

[[maybe_unused]] const int redirected = dl_iterate_phdr(redirect, nullptr);

}  // namespace
}  // namespace ortrain

#endif  // ORTRAIN_OWN_THREADS
