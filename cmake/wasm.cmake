# The C++ library, with exceptions. Left out: sources that need functions that the C library lacks, sources for programs without
# exceptions, and unused parts.
set(LLVM ${WASM_TOOLS}/python/ziglang/lib)
file(GLOB CXX_SOURCES ${LLVM}/libcxx/src/*.cpp ${LLVM}/libcxx/src/filesystem/*.cpp ${LLVM}/libcxx/src/ryu/*.cpp
     ${LLVM}/libcxxabi/src/*.cpp)
list(FILTER CXX_SOURCES EXCLUDE REGEX
     "/(libdispatch|int128_builtins|cxa_noexception|cxa_thread_atexit|strstream|random_shuffle|print)[.]cpp$")
add_library(c++ STATIC ${CXX_SOURCES} ${CMAKE_CURRENT_LIST_DIR}/wasm_exceptions.cpp)
set_target_properties(c++ PROPERTIES CXX_STANDARD 23)
target_compile_options(c++ PRIVATE -Os -w -ffunction-sections -fdata-sections -fdeclspec)
target_compile_definitions(c++ PRIVATE _LIBCPP_BUILDING_LIBRARY _LIBCXXABI_BUILDING_LIBRARY LIBCXX_BUILDING_LIBCXXABI __WASM_EXCEPTIONS__
                           LIBC_NAMESPACE=__llvm_libc_common_utils)
target_include_directories(c++ PRIVATE ${LLVM}/libcxx/src ${LLVM}/libcxx/libc ${LLVM}/libunwind/include ${LLVM}/libunwind/src)
# The C library has no copy_file_range, but this source expects that every musl has this function.
set_property(SOURCE ${LLVM}/libcxx/src/filesystem/operations.cpp PROPERTY COMPILE_OPTIONS -D_LIBCPP_HAS_MUSL_LIBC=0)

# WebAssembly has no shared libraries here: the library is a module, build/wasm/ortrain.wasm, and programs contain the core.
add_library(ortrain INTERFACE)
target_include_directories(ortrain INTERFACE ${PROJECT_SOURCE_DIR}/core/include)
target_link_libraries(ortrain INTERFACE $<TARGET_OBJECTS:core>)
# A stack that overflows ends the module instead of writing over its data. Graphs may be nested deeply.
# The wasm-opt of a system, which clang would call, may be too old for the instructions.
add_link_options(--no-wasm-opt -nodefaultlibs -B${WASM_TOOLS}/lib -Wl,-z,stack-size=4194304 -Wl,--stack-first -Wl,--gc-sections)
set(CMAKE_EXECUTABLE_SUFFIX .wasm)
link_libraries(c++ c zigc compiler_rt)

# A host calls the functions of C through the tables that OrtGetApiBase returns, so it needs the table of functions, and memory.
file(WRITE ${CMAKE_BINARY_DIR}/empty.cpp "")
add_executable(module ${CMAKE_BINARY_DIR}/empty.cpp)
set_target_properties(module PROPERTIES OUTPUT_NAME ortrain)
target_link_libraries(module PRIVATE ortrain)
target_link_options(module PRIVATE -mexec-model=reactor -Wl,--export-table -Wl,--export=OrtGetApiBase -Wl,--export=OrtrainGetApi
                    -Wl,--export=malloc -Wl,--export=free -Wl,--strip-debug)

if(ORTRAIN_TESTS)
  add_executable(replay tests/replay/main.cpp tests/replay/replay.cpp)
  target_link_libraries(replay PRIVATE ortrain)
  include(cmake/catch.cmake)
  target_compile_definitions(catch_main PRIVATE CATCH_CONFIG_NO_POSIX_SIGNALS)  # WASI has no signals
  file(GLOB CAPI_TESTS CONFIGURE_DEPENDS tests/capi/*.cpp)
  add_executable(test_capi ${CAPI_TESTS})
  target_link_libraries(test_capi PRIVATE ortrain catch_main)
  target_compile_options(test_capi PRIVATE $<$<CONFIG:Development>:-O0>)  # a test runs once
  target_compile_definitions(test_capi PRIVATE TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" ORTRAIN_LEGACY=0)

  # The tests of the core's classes that need neither protobuf nor parts of POSIX that WASI lacks. They need all operators.
  file(GLOB CORE_TESTS CONFIGURE_DEPENDS tests/core/*.cpp)
  list(FILTER CORE_TESTS EXCLUDE REGEX "/test_(allocations|checkpoint|fork|onnx_io|protobuf|replaced_file|system)\\.cpp$")
  add_executable(test_core EXCLUDE_FROM_ALL ${CORE_TESTS})
  target_link_libraries(test_core PRIVATE core catch_main)
  target_compile_definitions(test_core PRIVATE TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" ORTRAIN_LEGACY=0)
endif()
