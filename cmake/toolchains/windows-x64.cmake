# Windows on x86-64, by the compiler that scripts/zig_compiler.sh writes into the folder ZIG_TOOLS; programs run under Wine.
# The compiler is clang: gcc for Windows stores AVX registers on the stack where it aligned the stack to 16 bytes only (its bug 54412),
# so that kernels with vectors of 32 and 64 bytes would crash.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(CMAKE_CXX_COMPILER ${ZIG_COMPILER})
set(CMAKE_RC_COMPILER ${ZIG_TOOLS}/bin/rc)
set(CMAKE_AR ${ZIG_TOOLS}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${ZIG_TOOLS}/bin/ranlib CACHE FILEPATH "")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_COMPILER ZIG_TOOLS)
set(CMAKE_CROSSCOMPILING_EMULATOR wine)
list(APPEND CMAKE_PREFIX_PATH ${ZIG_TOOLS})
