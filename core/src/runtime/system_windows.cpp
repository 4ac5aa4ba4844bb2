// Windows 10 and newer, on NTFS as far as files are concerned. Paths are UTF-16 here, names and messages
// UTF-8.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
// <windows.h> goes before these.
#include <aclapi.h>
#include <psapi.h>

#include <algorithm>
#include <bit>
#include <clocale>
#include <cstdlib>
#include <limits>
#include <locale>
#include <memory>
#include <string>
#include <vector>

#include "runtime/path.h"
#include "runtime/system.h"

namespace ortrain::system {

namespace {

// At its first use, the C++ library takes the table of letters and spaces from the thread's locale in the C
// library, and keeps the address. The C library frees that table when the program changes its locale, except
// the table of the locale "C". So this is the first use, with that locale.
[[maybe_unused]] const bool kHasTableOfC = [] {
  const int mode = ::_configthreadlocale(_ENABLE_PER_THREAD_LOCALE);
  const std::string before = std::setlocale(LC_CTYPE, nullptr);
  std::setlocale(LC_CTYPE, "C");
  std::locale::classic();
  std::setlocale(LC_CTYPE, before.c_str());
  ::_configthreadlocale(mode);
  return true;
}();

constexpr size_t kMostAtOnce = size_t{1} << 30;
// Other processes may open, replace and remove a file while it is open here, as on other systems.
constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

HANDLE as_handle(intptr_t handle) { return reinterpret_cast<HANDLE>(handle); }
intptr_t as_number(HANDLE handle) { return reinterpret_cast<intptr_t>(handle); }

// Folders are opened too, so that a message can say that a folder was given.
HANDLE open_handle(const std::filesystem::path& path, DWORD access, DWORD how, DWORD flags = 0) {
  return ::CreateFileW(path.c_str(), access, kShared, nullptr, how, FILE_FLAG_BACKUP_SEMANTICS | flags,
                       nullptr);
}

// A handle that is closed without a change of the reason for which a call failed.
class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  ~Handle() {
    if (handle_ == INVALID_HANDLE_VALUE) return;
    const DWORD error = ::GetLastError();
    ::CloseHandle(handle_);
    ::SetLastError(error);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  explicit operator bool() const { return handle_ != INVALID_HANDLE_VALUE; }
  operator HANDLE() const { return handle_; }

 private:
  HANDLE handle_;
};

std::optional<FileInfo> info_of(HANDLE handle) {
  if (::GetFileType(handle) != FILE_TYPE_DISK) return FileInfo{FileInfo::kSpecial, 0};
  FILE_STANDARD_INFO info{};
  if (!::GetFileInformationByHandleEx(handle, FileStandardInfo, &info, sizeof info)) return std::nullopt;
  return FileInfo{info.Directory ? FileInfo::kFolder : FileInfo::kFile,
                  static_cast<size_t>(info.EndOfFile.QuadPart)};
}

// Locks a byte far behind the end of any file: a lock on contents would keep others from reading them.
bool lock_handle(HANDLE handle) {
  OVERLAPPED at{};
  at.OffsetHigh = 0x40000000;
  return ::LockFileEx(handle, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at);
}

// Removes the file at once where the file system can do that, else when the last handle of the file is
// closed.
bool remove_handle(HANDLE handle) {
  constexpr DWORD kDelete = 1, kPosixSemantics = 2;
  constexpr auto kFileDispositionInfoEx = static_cast<FILE_INFO_BY_HANDLE_CLASS>(21);
  DWORD flags = kDelete | kPosixSemantics;
  if (::SetFileInformationByHandle(handle, kFileDispositionInfoEx, &flags, sizeof flags)) return true;
  FILE_DISPOSITION_INFO remove{TRUE};
  return ::SetFileInformationByHandle(handle, FileDispositionInfo, &remove, sizeof remove);
}

// Renames as POSIX does: a file that is open elsewhere gives up its name at once. Needs NTFS and Windows 10
// or newer.
bool rename_at_once(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr DWORD kReplaceIfExists = 1, kPosixSemantics = 2;
  constexpr auto kFileRenameInfoEx = static_cast<FILE_INFO_BY_HANDLE_CLASS>(22);
  const Handle file(open_handle(from, DELETE | SYNCHRONIZE, OPEN_EXISTING, FILE_FLAG_WRITE_THROUGH));
  if (!file) return false;
  std::error_code error;
  const std::wstring name = std::filesystem::absolute(to, error).native();
  const size_t bytes = sizeof(FILE_RENAME_INFO) + name.size() * sizeof(wchar_t);
  std::vector<std::max_align_t> memory(bytes / sizeof(std::max_align_t) + 1);
  auto* const info = reinterpret_cast<FILE_RENAME_INFO*>(memory.data());
  info->Flags = kReplaceIfExists | kPosixSemantics;
  info->FileNameLength = static_cast<DWORD>(name.size() * sizeof(wchar_t));
  std::copy_n(name.c_str(), name.size() + 1, info->FileName);
  return !error && ::SetFileInformationByHandle(file, kFileRenameInfoEx, info, static_cast<DWORD>(bytes));
}

// The letter in the case that `how` states. Letters outside of the first 65,536 stay unchanged, as in
// Windows.
uint32_t mapped_letter(uint32_t letter, DWORD how) {
  const auto from = static_cast<wchar_t>(letter);
  wchar_t to = 0;
  if (letter > 0xFFFF ||
      ::LCMapStringEx(LOCALE_NAME_INVARIANT, how, &from, 1, &to, 1, nullptr, nullptr, 0) != 1)
    return letter;
  return to;
}

// Precedes each block of allocate_aligned().
struct BlockStart {
  void* allocated;
  size_t bytes;
};

BlockStart* start_of(void* block) { return static_cast<BlockStart*>(block) - 1; }

// Threads wait in the code of this library, so FreeLibrary must not unload it.
[[maybe_unused]] const bool kept = [] {
  static const char here = 0;
  HMODULE module;
  return ::GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                              reinterpret_cast<const wchar_t*>(&here), &module) != 0;
}();

}  // namespace

std::string reason() {
  const DWORD error = ::GetLastError();
  wchar_t text[512];
  DWORD size = ::FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, error, 0,
                                text, std::size(text), nullptr);
  while (size > 0 && (text[size - 1] <= L' ' || text[size - 1] == L'.')) --size;  // it is part of a sentence
  if (size == 0) return "error " + std::to_string(error) + " of Windows";
  return to_utf8(std::wstring_view(text, size));
}

Failure failure() {
  switch (::GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_PATH_NOT_FOUND:
    case ERROR_INVALID_DRIVE:
    case ERROR_BAD_NETPATH:
    case ERROR_BAD_NET_NAME:
      return Failure::kNotFound;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS:
      return Failure::kExists;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
      return Failure::kDenied;
    default:
      return Failure::kOther;
  }
}

std::optional<FileInfo> info(const std::filesystem::path& path) {
  const Handle file(open_handle(path, FILE_READ_ATTRIBUTES, OPEN_EXISTING));
  if (!file) return std::nullopt;
  return info_of(file);
}

File File::open(const std::filesystem::path& path) {
  return File(as_number(open_handle(path, GENERIC_READ, OPEN_EXISTING)));
}

File File::create(const std::filesystem::path& path) {
  return File(as_number(open_handle(path, GENERIC_WRITE | READ_CONTROL | WRITE_DAC, CREATE_NEW)));
}

void File::close() {
  if (handle_ != kNone) ::CloseHandle(as_handle(std::exchange(handle_, kNone)));
}

std::optional<FileInfo> File::info() const { return info_of(as_handle(handle_)); }

ptrdiff_t File::read(void* to, size_t bytes, uint64_t offset) const {
  OVERLAPPED at{};
  at.Offset = static_cast<DWORD>(offset);
  at.OffsetHigh = static_cast<DWORD>(offset >> 32);
  DWORD n = 0;
  if (::ReadFile(as_handle(handle_), to, static_cast<DWORD>(std::min(bytes, kMostAtOnce)), &n, &at)) return n;
  return ::GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
}

bool File::write(const void* from, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    DWORD n = 0;
    if (!::WriteFile(as_handle(handle_), at, static_cast<DWORD>(std::min(bytes, kMostAtOnce)), &n, nullptr))
      return false;
    at += n;
    bytes -= n;
  }
  return true;
}

bool File::sync() { return ::FlushFileBuffers(as_handle(handle_)); }

File::Lock File::lock() {
  if (lock_handle(as_handle(handle_))) return Lock::kTaken;
  return ::GetLastError() == ERROR_LOCK_VIOLATION ? Lock::kHeld : Lock::kFailed;
}

bool File::has_name() const {
  FILE_STANDARD_INFO info{};
  return !::GetFileInformationByHandleEx(as_handle(handle_), FileStandardInfo, &info, sizeof info) ||
         (!info.DeletePending && info.NumberOfLinks > 0);
}

// Copies the list of permissions. A file inherits the list from its folder unless somebody has changed the
// list.
void File::copy_permissions(const std::filesystem::path& from) {
  const Handle other(open_handle(from, READ_CONTROL, OPEN_EXISTING));
  ACL* list = nullptr;
  PSECURITY_DESCRIPTOR descriptor = nullptr;
  if (!other || ::GetSecurityInfo(other, SE_FILE_OBJECT, DACL_SECURITY_INFORMATION, nullptr, nullptr, &list,
                                  nullptr, &descriptor) != ERROR_SUCCESS)
    return;
  SECURITY_DESCRIPTOR_CONTROL control = 0;
  DWORD revision = 0;
  if (::GetSecurityDescriptorControl(descriptor, &control, &revision)) {
    const SECURITY_INFORMATION inheritance = (control & SE_DACL_PROTECTED) != 0
                                                 ? PROTECTED_DACL_SECURITY_INFORMATION
                                                 : UNPROTECTED_DACL_SECURITY_INFORMATION;
    ::SetSecurityInfo(as_handle(handle_), SE_FILE_OBJECT, DACL_SECURITY_INFORMATION | inheritance, nullptr,
                      nullptr, list, nullptr);
  }
  ::LocalFree(descriptor);
}

const std::byte* File::map(size_t bytes) const {
  const HANDLE mapping = ::CreateFileMappingW(as_handle(handle_), nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (mapping == nullptr) return nullptr;
  const Handle closed(mapping);  // the memory stays until it is unmapped
  return static_cast<const std::byte*>(::MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes));
}

void unmap(const std::byte* mapped, size_t) { ::UnmapViewOfFile(mapped); }

void prefetch(const std::byte* mapped, size_t bytes) {
  WIN32_MEMORY_RANGE_ENTRY range{const_cast<std::byte*>(mapped), bytes};
  ::PrefetchVirtualMemory(::GetCurrentProcess(), 1, &range, 0);
}

bool remove_file(const std::filesystem::path& path) { return ::DeleteFileW(path.c_str()); }

void remove_unlocked(const std::filesystem::path& path) {
  const Handle file(open_handle(path, GENERIC_READ | DELETE, OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT));
  if (!file) return;
  FILE_ATTRIBUTE_TAG_INFO tag{};
  constexpr DWORD kNoFile = FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT;
  if (::GetFileInformationByHandleEx(file, FileAttributeTagInfo, &tag, sizeof tag) &&
      (tag.FileAttributes & kNoFile) == 0 && lock_handle(file))
    remove_handle(file);
}

// Where a file cannot give up its name while it is open or mapped, waits until others close it. To rename the
// old file first would need no wait, but a crash between the two steps would leave no file.
bool replace(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr DWORD kShortest = 1, kLongest = 1024;  // milliseconds; two seconds in all
  for (DWORD wait = kShortest;; wait *= 2) {
    if (rename_at_once(from, to) ||
        ::MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH))
      return true;
    const DWORD error = ::GetLastError();
    const bool in_use = error == ERROR_ACCESS_DENIED || error == ERROR_SHARING_VIOLATION ||
                        error == ERROR_LOCK_VIOLATION || error == ERROR_USER_MAPPED_FILE;
    if (!in_use || wait > kLongest) return false;
    ::Sleep(wait);
  }
}

bool link(const std::filesystem::path& from, const std::filesystem::path& to) {
  return ::CreateHardLinkW(to.c_str(), from.c_str(), nullptr);
}

bool sync_folder(const std::filesystem::path&) { return true; }  // changes of names are written through

void for_each_name(const std::filesystem::path& folder, const std::function<void(std::string_view)>& f) {
  WIN32_FIND_DATAW entry;
  const HANDLE search = ::FindFirstFileW((folder / L"*").c_str(), &entry);
  if (search == INVALID_HANDLE_VALUE) return;
  const std::unique_ptr<void, BOOL (*)(HANDLE)> owner(search, [](HANDLE s) { return ::FindClose(s); });
  do f(to_utf8(entry.cFileName));
  while (::FindNextFileW(search, &entry));
}

void* open_library(const std::filesystem::path& path, std::string& why) {
  // With a full path, the libraries that it needs are looked for next to it.
  void* library =
      ::LoadLibraryExW(path.c_str(), nullptr, path.is_absolute() ? LOAD_WITH_ALTERED_SEARCH_PATH : 0);
  if (library == nullptr) why = reason();
  return library;
}

void close_library(void* library) { ::FreeLibrary(static_cast<HMODULE>(library)); }

void* symbol(void* library, const char* name) {
  return reinterpret_cast<void*>(::GetProcAddress(static_cast<HMODULE>(library), name));
}

void* symbol_of_program(const char* name) {
  HMODULE modules[1024];
  DWORD bytes = 0;
  if (!::EnumProcessModules(::GetCurrentProcess(), modules, sizeof modules, &bytes)) return nullptr;
  for (size_t i = 0; i < std::min(std::size(modules), bytes / sizeof *modules); ++i)
    if (void* found = symbol(modules[i], name)) return found;
  return nullptr;
}

// The C library has aligned blocks, but tells the size of a block only to callers that know the alignment.
void* allocate_aligned(size_t alignment, size_t bytes) {
  if (bytes > SIZE_MAX - alignment - sizeof(BlockStart)) return nullptr;
  void* const allocated = std::malloc(bytes + alignment + sizeof(BlockStart));
  if (allocated == nullptr) return nullptr;
  const uintptr_t first = reinterpret_cast<uintptr_t>(allocated) + sizeof(BlockStart);
  auto* const block = reinterpret_cast<void*>((first + alignment - 1) & ~(alignment - 1));
  *start_of(block) = {allocated, bytes};
  return block;
}

void free_aligned(void* block) {
  if (block != nullptr) std::free(start_of(block)->allocated);
}

size_t usable_bytes(void* block) { return block == nullptr ? 0 : start_of(block)->bytes; }

void prefer_huge_pages(void*, size_t) {}  // they need a privilege that users do not have
void return_freed_memory() {}             // the heap does that by itself

size_t machine_memory() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  return ::GlobalMemoryStatusEx(&status) ? static_cast<size_t>(status.ullTotalPageFile) : SIZE_MAX;
}

std::optional<AddressSpace> address_space() { return std::nullopt; }

int processors() {
  DWORD_PTR mine = 0, all = 0;
  ::GetProcessAffinityMask(::GetCurrentProcess(), &mine, &all);
  return std::max(1, std::popcount(mine));
}

int most_threads() { return std::numeric_limits<int>::max(); }

ArmInstructions arm_instructions() { return {}; }  // not asked for: no library is built for Windows on arm64
bool ask_for_tile_registers() { return false; }    // possible since Windows 11; not tested

void bind_thread(std::span<const int> processors) {
  DWORD_PTR mask = 0;
  for (const int processor : processors)
    if (processor >= 0 && processor < 64) mask |= DWORD_PTR{1} << processor;
  ::SetThreadAffinityMask(::GetCurrentThread(),
                          mask);  // without these processors, the thread stays where it was
}

bool locks_when_threads_end() { return true; }  // the loader's lock

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load(std::memory_order_acquire) == value)
    ::WaitOnAddress(&word, &value, sizeof value, INFINITE);
}
void wake(std::atomic<uint32_t>& word) { ::WakeByAddressAll(&word); }

int64_t process_id() { return ::GetCurrentProcessId(); }
void before_fork(void (*)()) {}  // there is no fork

std::tm local_time(std::time_t time) {
  std::tm local{};
  ::localtime_s(&local, &time);
  return local;
}

uint32_t lower_case(uint32_t letter) { return mapped_letter(letter, LCMAP_LOWERCASE); }
uint32_t upper_case(uint32_t letter) { return mapped_letter(letter, LCMAP_UPPERCASE); }

}  // namespace ortrain::system
