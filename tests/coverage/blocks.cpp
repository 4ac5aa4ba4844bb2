// Part of the library in a coverage build (CMake option ORTRAIN_COVERAGE): which basic blocks of the core
// have run.
//
// clang gives each block a flag, which the block sets, and a row in a table of addresses, and passes both to
// the functions below when the library is loaded (https://clang.llvm.org/docs/SanitizerCoverage.html).
// tests/coverage_by_test.py reads and clears the flags between tests. Other processes that load the library
// while a test runs write their flags into a folder at their end.

#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

struct Row {
  std::uintptr_t address;
  std::uintptr_t is_entry;  // 1 for the first block of a function
};

// Each object file passes the flags and rows of the whole library, so the last call says the same as the
// first.
unsigned char* flags = nullptr;
const Row* rows = nullptr;
std::size_t count = 0;

// Writes the flags when the process ends, unless it is killed or ends without cleaning up.
struct AtEnd {
  ~AtEnd() {
    const char* folder = std::getenv("ORTRAIN_COVERAGE_FOLDER");
    if (folder == nullptr || flags == nullptr) {
      return;
    }
    const std::string path = std::string(folder) + "/" + std::to_string(getpid());
    const std::string unfinished = path + ".unfinished";
    if (std::FILE* file = std::fopen(unfinished.c_str(), "wb")) {
      const bool written = std::fwrite(flags, 1, count, file) == count;
      if (std::fclose(file) == 0 && written) {
        std::rename(unfinished.c_str(), path.c_str());
      }
    }
  }
} at_end;

}  // namespace

extern "C" {

void __sanitizer_cov_bool_flag_init(unsigned char* begin, unsigned char* end) {
  flags = begin;
  count = static_cast<std::size_t>(end - begin);
}

void __sanitizer_cov_pcs_init(const std::uintptr_t* begin, const std::uintptr_t*) {
  rows = reinterpret_cast<const Row*>(begin);
}

// Gives the flags and the rows of all blocks, in the same order, and the address at which the library was
// loaded. Returns how many blocks there are.
__attribute__((visibility("default"))) std::size_t ortrain_coverage_blocks(unsigned char** all_flags,
                                                                           const Row** all_rows,
                                                                           std::uintptr_t* loaded_at) {
  Dl_info about{};
  dladdr(reinterpret_cast<const void*>(&ortrain_coverage_blocks), &about);
  *all_flags = flags;
  *all_rows = rows;
  *loaded_at = reinterpret_cast<std::uintptr_t>(about.dli_fbase);
  return count;
}
}
