# macOS on arm64, by the compiler that scripts/zig_compiler.sh writes into the folder ZIG_TOOLS.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER ${ZIG_COMPILER})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_COMPILER ZIG_TOOLS)
list(PREPEND CMAKE_PREFIX_PATH ${ZIG_TOOLS})
# CMake looks for this tool of Xcode, which only installing needs.
set(CMAKE_INSTALL_NAME_TOOL /bin/false)
# Linking takes long the first time: ziglang then compiles its C++ library.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
