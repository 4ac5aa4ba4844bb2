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
endif()
