# Linux with another C library than that of this machine, by the compiler that scripts/zig_compiler.sh writes into the folder ZIG_TOOLS.
set(CMAKE_CXX_COMPILER ${ZIG_COMPILER})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_COMPILER ZIG_TOOLS)
list(PREPEND CMAKE_PREFIX_PATH ${ZIG_TOOLS})
