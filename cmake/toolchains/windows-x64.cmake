# Windows on x86-64, by the tools that scripts/windows_tools.sh puts into the folder WINDOWS_TOOLS; programs run under Wine.
# The compiler is clang: gcc for Windows stores AVX registers on the stack where it aligned the stack to 16 bytes only (its bug 54412),
# so that kernels with vectors of 32 and 64 bytes would crash.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(CMAKE_CXX_COMPILER ${WINDOWS_TOOLS}/bin/clang++)
set(CMAKE_RC_COMPILER ${WINDOWS_TOOLS}/bin/rc)
set(CMAKE_AR ${WINDOWS_TOOLS}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${WINDOWS_TOOLS}/bin/ranlib CACHE FILEPATH "")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES WINDOWS_TOOLS)
set(CMAKE_CROSSCOMPILING_EMULATOR wine)
list(APPEND CMAKE_PREFIX_PATH ${WINDOWS_TOOLS})
