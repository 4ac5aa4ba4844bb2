// Everything that differs between operating systems: files, mapping, libraries, memory, processors,
// processes, time and letters. CMake compiles runtime/system_<system>.cpp and, except for Windows,
// runtime/system_descriptors.cpp. No other source includes a header of a system or tests for one with #if;
// tests/structure checks that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ortrain::system {

// Why the last call of this thread that returned false, nothing or an empty File has failed.
std::string reason();
enum class Failure { kNotFound, kExists, kDenied, kOther };
Failure failure();

struct FileInfo {
  enum Kind { kFile, kFolder, kSpecial } kind;
  size_t bytes;
};

// Examines a file or folder; links are followed. Nothing if it does not exist or cannot be examined.
std::optional<FileInfo> info(const std::filesystem::path& path);

// An open file; closed when it is destroyed.
class File {
 public:
  File() = default;
  ~File() { close(); }
  File(File&& other) noexcept : handle_(std::exchange(other.handle_, kNone)) {}
  File& operator=(File&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  // Opens it for reading. Does not wait until another process writes to a pipe.
  static File open(const std::filesystem::path& path);
  // Creates it for writing. Fails if it exists.
  static File create(const std::filesystem::path& path);

  explicit operator bool() const { return handle_ != kNone; }
  void close();
  std::optional<FileInfo> info() const;
  // Returns how many bytes were read: 0 at the end of the file, -1 for a failure.
  ptrdiff_t read(void* to, size_t bytes, uint64_t offset) const;
  // Writes all of them.
  bool write(const void* from, size_t bytes);
  // Waits until the contents are on the disk.
  bool sync();
  // Locks the file until it is closed, by this process or by its end. kHeld: another File has locked it.
  enum class Lock { kTaken, kHeld, kFailed };
  Lock lock();
  // Whether the file still has a name in a folder.
  bool has_name() const;
  // Gives it the permissions of another file, where the system has such.
  void copy_permissions(const std::filesystem::path& from);

  // Its contents as memory that is only read. Null for a failure.
  const std::byte* map(size_t bytes) const;

 private:
  static constexpr intptr_t kNone = -1;
  explicit File(intptr_t handle) : handle_(handle) {}
  intptr_t handle_ = kNone;
};

void unmap(const std::byte* mapped, size_t bytes);
// Says that all of it will be read soon.
void prefetch(const std::byte* mapped, size_t bytes);

bool remove_file(const std::filesystem::path& path);
// Removes a regular file unless somebody has locked it.
void remove_unlocked(const std::filesystem::path& path);
// Renames a file. One that has the new name is replaced, also while it is open or mapped.
bool replace(const std::filesystem::path& from, const std::filesystem::path& to);
// Gives a file a second name. False where the file system cannot.
bool link(const std::filesystem::path& from, const std::filesystem::path& to);
// Makes changes of names in the folder durable, where that can be asked for.
bool sync_folder(const std::filesystem::path& folder);
// Calls `f` for each name in the folder. std::filesystem would end the process where memory is short.
void for_each_name(const std::filesystem::path& folder, const std::function<void(std::string_view)>& f);

// Libraries that a program names. Null for a failure, with the reason in `why`.
void* open_library(const std::filesystem::path& path, std::string& why);
void close_library(void* library);
// Null if it does not have the symbol.
void* symbol(void* library, const char* name);
// A symbol of the program or of the libraries that it is linked with.
void* symbol_of_program(const char* name);

// Memory with an alignment of a power of two that divides `bytes`. Null if there is not enough.
void* allocate_aligned(size_t alignment, size_t bytes);
void free_aligned(void* block);
// The bytes of a block of allocate_aligned(), at least those that were asked for.
size_t usable_bytes(void* block);
// Asks for huge pages.
void prefer_huge_pages(void* block, size_t bytes);
// Gives memory that was freed back to the system, where the allocator would keep it.
void return_freed_memory();
// The memory and swap space of the machine; SIZE_MAX if that is not known.
size_t machine_memory();
// The addresses that the process uses and may use; nothing if it has no limit or that is not known.
struct AddressSpace {
  size_t used, limit;
};
std::optional<AddressSpace> address_space();

// How many processors this process may use: those that it is bound to, and no more than its control group
// grants.
int processors();
// How many threads a process may have: 1 where the system cannot start threads.
int most_threads();
// Instructions that some arm64 processors have and others lack. All false on other processors.
struct ArmInstructions {
  bool dot_products = false;  // sums of four products of 8-bit integers: SDOT (FEAT_DotProd)
  bool bf16 = false;          // products of bfloat16: BFMMLA (FEAT_BF16)
};
ArmInstructions arm_instructions();
// Asks for the tile registers of AMX. Returns whether the system grants them to all threads of the process.
bool ask_for_tile_registers();
// Binds this thread to processors, by number. Numbers that the machine lacks are ignored.
void bind_thread(std::span<const int> processors);
// Whether a thread holds a lock while it destroys its thread_local variables that other threads need before
// they can start or end. It must not wait for them there.
bool locks_when_threads_end();
// Sleeps while the word has this value. `wake` wakes those who sleep on it, after the word was changed.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value);
void wake(std::atomic<uint32_t>& word);

int64_t process_id();
// Calls `f` in a process that is about to be forked.
void before_fork(void (*f)());

std::tm local_time(std::time_t time);

// A letter of Unicode in lower or upper case, whatever language the process has chosen.
uint32_t lower_case(uint32_t letter);
uint32_t upper_case(uint32_t letter);

}  // namespace ortrain::system
