# What makes a library smaller that is optimized at link time, and more so one with a part of the operators: the full library is also
# built for older systems.

option(ORTRAIN_PACKED_RELOCATIONS "Pack the relocations of libraries with some of the operators, if the system can read them" ON)

# The compiler sees all sources when the library is linked: it drops and merges functions, and the unwind tables with them. Each
# function keeps the level of optimization of its source.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release AND ORTRAIN_LTO)
  set(LINK_TIME_OPTIMIZATION ON)
  # dynamic_cast and typeid, of which the core has none, need the names of classes and lambdas (40 KB). Exceptions do not.
  target_compile_options(core PRIVATE -flto -fno-rtti)
  # With sections, the linker also drops what only dropped functions need, and its map names each function.
  target_link_options(core PUBLIC -flto=auto -ffunction-sections -fdata-sections)
  # Unwind tables only for functions that an exception can pass, 280 KB less. gcc leaves the others out if it writes the tables itself
  # (-fno-dwarf2-cfi-asm), and the assembler shortens those of the version that comes with DWARF 2 (-gdwarf-2; -g0: no other
  # information for debuggers). A profiler or debugger that reads these tables cannot find the callers of a kernel that throws
  # nothing: builds with debug information, and those that are not optimized at link time, have all tables.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND NOT CMAKE_CXX_FLAGS MATCHES "(^| )-g")
    target_link_options(core PUBLIC -fexceptions -fno-asynchronous-unwind-tables -fno-dwarf2-cfi-asm -gdwarf-2 -g0)
  endif()
endif()

# Relocations take two bits of memory instead of 24 bytes each. Loaders read that form since glibc 2.36 (and Android 9), and libraries
# name the version that they need.
if(REDUCED AND CMAKE_SYSTEM_NAME STREQUAL Linux AND ORTRAIN_PACKED_RELOCATIONS)
  include(CheckCXXSourceCompiles)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -Wl,-z,pack-relative-relocs LINKER_PACKS_RELOCATIONS)
  check_cxx_source_compiles("
    #include <features.h>
    #if !defined(__GLIBC__) || !__GLIBC_PREREQ(2, 36)
    #error the loader is too old
    #endif
    int main() {}" LOADER_PACKS_RELOCATIONS)
  if(LINKER_PACKS_RELOCATIONS AND LOADER_PACKS_RELOCATIONS)
    target_link_options(core PUBLIC -Wl,-z,pack-relative-relocs)
  endif()
endif()

# Constants lie in the segment of the code, without padding to whole pages between them.
if(CMAKE_SYSTEM_NAME MATCHES "^(Linux|Android)$")
  include(CheckLinkerFlag)
  check_linker_flag(CXX -Wl,-z,noseparate-code LINKER_JOINS_SEGMENTS)  # zig's linker does not
  if(LINKER_JOINS_SEGMENTS)
    target_link_options(core PUBLIC -Wl,-z,noseparate-code)
  endif()
endif()
