# WebAssembly with WASI, by the tools that scripts/wasm_tools.sh puts into the folder WASM_TOOLS.
set(CMAKE_SYSTEM_NAME WASI)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(CMAKE_CXX_COMPILER ${WASM_TOOLS}/bin/clang++)
set(CMAKE_AR ${WASM_TOOLS}/bin/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${WASM_TOOLS}/bin/ranlib CACHE FILEPATH "")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES WASM_TOOLS)
# The tools may still lack the C library when CMake tries them, and linking takes long.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_CROSSCOMPILING_EMULATOR node;${CMAKE_CURRENT_LIST_DIR}/../../bindings/javascript/run_wasi.mjs)
list(APPEND CMAKE_PREFIX_PATH ${WASM_TOOLS})
set(CMAKE_HAVE_LIBC_PTHREAD TRUE CACHE BOOL "")  # its calls, for one thread
