// WebAssembly with the interface WASI: one thread, one process, files in the folders that the host opens for
// it. What it shares with POSIX systems is in system_descriptors.cpp.
#include <malloc.h>
#include <wctype.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "runtime/system.h"

namespace ortrain::system {

// WASI has neither locks nor permissions of files.
File::Lock File::lock() { return Lock::kTaken; }
void File::copy_permissions(const std::filesystem::path&) {}

// Files cannot be mapped: their contents are copied.
const std::byte* File::map(size_t bytes) const {
  std::unique_ptr<std::byte, void (*)(void*)> copy(static_cast<std::byte*>(std::malloc(bytes)), std::free);
  if (!copy) return nullptr;
  for (size_t done = 0; done < bytes;) {
    const ptrdiff_t n = read(copy.get() + done, bytes - done, done);
    if (n < 0) return nullptr;
    if (n == 0) {  // truncated meanwhile
      errno = EIO;
      return nullptr;
    }
    done += static_cast<size_t>(n);
  }
  return copy.release();
}

void unmap(const std::byte* mapped, size_t) { std::free(const_cast<std::byte*>(mapped)); }
void prefetch(const std::byte*, size_t) {}

// A process on the host may be writing the file: without locks, nobody can tell.
void remove_unlocked(const std::filesystem::path&) {}

bool sync_folder(const std::filesystem::path&) { return true; }

void* open_library(const std::filesystem::path&, std::string& why) {
  why = "a WebAssembly module cannot load libraries";
  return nullptr;
}
void close_library(void*) {}
void* symbol(void*, const char*) { return nullptr; }
void* symbol_of_program(const char*) { return nullptr; }

void* allocate_aligned(size_t alignment, size_t bytes) { return std::aligned_alloc(alignment, bytes); }
void free_aligned(void* block) { std::free(block); }
size_t usable_bytes(void* block) { return ::malloc_usable_size(block); }
void prefer_huge_pages(void*, size_t) {}
void return_freed_memory() {}

// Its memory grows up to all addresses, or until the host refuses.
size_t machine_memory() { return SIZE_MAX; }
std::optional<AddressSpace> address_space() { return std::nullopt; }

int processors() { return 1; }
int most_threads() { return 1; }
ArmInstructions arm_instructions() { return {}; }
bool ask_for_tile_registers() { return false; }
void bind_thread(std::span<const int>) {}
bool locks_when_threads_end() { return false; }
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) { word.wait(value, std::memory_order_acquire); }
void wake(std::atomic<uint32_t>& word) { word.notify_all(); }

int64_t process_id() { return 1; }
void before_fork(void (*)()) {}

uint32_t lower_case(uint32_t letter) {
  return static_cast<uint32_t>(::towlower(static_cast<wint_t>(letter)));
}
uint32_t upper_case(uint32_t letter) {
  return static_cast<uint32_t>(::towupper(static_cast<wint_t>(letter)));
}

}  // namespace ortrain::system
