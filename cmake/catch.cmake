# The target of Catch2 to link test programs with, in CATCH.
if(CMAKE_CROSSCOMPILING OR ZIG_COMPILER)  # the library that is installed is of this machine and its C++ library
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/catch_main.cpp "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n")
  find_path(CATCH_INCLUDE catch2/catch.hpp REQUIRED)
  add_library(catch_main STATIC ${CMAKE_CURRENT_BINARY_DIR}/catch_main.cpp)
  target_compile_options(catch_main PRIVATE -O0)  # takes half the time to compile, and little to run
  target_include_directories(catch_main SYSTEM PUBLIC ${CATCH_INCLUDE})
  set(CATCH catch_main)
else()
  find_package(Catch2 REQUIRED)
  set(CATCH Catch2::Catch2WithMain)
endif()
