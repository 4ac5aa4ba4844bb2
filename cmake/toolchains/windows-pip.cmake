# For pip on Windows: the compiler of PyPI's package ziglang, which pip installs for the build. scripts/zig_compiler.sh sets the same options
# on other systems.
if(NOT ZIG_FOLDER)
  find_package(Python COMPONENTS Interpreter REQUIRED)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent.as_posix())"
                  OUTPUT_VARIABLE ZIG_FOLDER OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ZIG_FOLDER)
set(CMAKE_CXX_COMPILER ${ZIG_FOLDER}/zig.exe c++)
set(CMAKE_CXX_FLAGS_INIT "-target x86_64-windows-gnu -fno-sanitize=undefined -g0")
set(CMAKE_RC_COMPILER ${ZIG_FOLDER}/zig.exe)  # CMake looks for one, but no source needs it
