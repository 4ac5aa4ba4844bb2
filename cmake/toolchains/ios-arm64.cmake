# Objects for iOS on arm64, by the compiler that scripts/zig_compiler.sh writes into the folder ZIG_TOOLS. CMake's own platform iOS needs
# a Mac, and nothing is linked here.
include(${CMAKE_CURRENT_LIST_DIR}/macos-arm64.cmake)
