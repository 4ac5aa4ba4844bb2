# Foundation from GNUstep over GCC's Objective-C runtime, as Debian has it.
find_program(GNUSTEP_CONFIG gnustep-config REQUIRED)
find_program(GCC gcc REQUIRED)

function(ask VARIABLE)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE ANSWER OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${VARIABLE} "${ANSWER}" PARENT_SCOPE)
endfunction()

ask(GNUSTEP_HEADERS ${GNUSTEP_CONFIG} --variable=GNUSTEP_SYSTEM_HEADERS)
# The runtime's headers are in the folder of GCC's own, which come last, so that clang finds its own first.
ask(GCC_HEADERS ${GCC} -print-file-name=include)
ask(OBJC_RUNTIME ${GCC} -print-file-name=libobjc.so)

set(GNUSTEP_OPTIONS "SHELL:-isystem ${GNUSTEP_HEADERS}" "SHELL:-idirafter ${GCC_HEADERS}" -DGNUSTEP -DGNUSTEP_BASE_LIBRARY=1
    -D_NATIVE_OBJC_EXCEPTIONS -fexceptions -fobjc-exceptions -fconstant-string-class=NSConstantString -pthread)
target_compile_options(foundation INTERFACE -fobjc-runtime=gcc -DGNU_RUNTIME=1 ${GNUSTEP_OPTIONS})
target_link_options(foundation INTERFACE -pthread)
target_link_libraries(foundation INTERFACE gnustep-base ${OBJC_RUNTIME} m)

# Clang counts references for another runtime only, one that is not here to link with; but it compiles for it against the
# same headers, when a function that looks into an object is left out of them.
set(COUNTED ${CMAKE_BINARY_DIR}/counted)
file(READ ${GCC_HEADERS}/objc/runtime.h HEADER)
string(REPLACE "return object->class_pointer;" "return Nil;" HEADER "${HEADER}")
string(REGEX REPLACE "#include \"(objc[a-z-]*\\.h)\"" "#include <objc/\\1>" HEADER "${HEADER}")
file(CONFIGURE OUTPUT ${COUNTED}/objc/runtime.h CONTENT "${HEADER}" @ONLY)

function(compile_counted TARGET)
  add_library(${TARGET} OBJECT ${ARGN})
  target_compile_options(${TARGET} PRIVATE -fobjc-arc -fobjc-runtime=gnustep-2.0 -fno-blocks "SHELL:-isystem ${COUNTED}"
                                           ${GNUSTEP_OPTIONS} -Wall -Wextra -Werror)
endfunction()
