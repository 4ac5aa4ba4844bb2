# The target `static` makes libortrain.a for packages of Swift: one object, of which other objects see the C functions alone. Its operators
# register themselves, so a linker that chooses among objects would leave them out. On Linux the C++ library is part of the object: a
# program needs the C library and nothing else.
set(FUNCTIONS)
file(GLOB HEADERS ${PROJECT_SOURCE_DIR}/core/include/*.h)
foreach(HEADER ${HEADERS})
  file(STRINGS ${HEADER} LINES REGEX "^ORT_EXPORT.* ORT_API_CALL [A-Za-z_]+\\(")
  foreach(LINE ${LINES})
    string(REGEX REPLACE ".* ORT_API_CALL ([A-Za-z_]+)\\(.*" "\\1" FUNCTION "${LINE}")
    list(APPEND FUNCTIONS ${FUNCTION})
  endforeach()
endforeach()

add_executable(prelinked EXCLUDE_FROM_ALL $<TARGET_OBJECTS:core>)
set_target_properties(prelinked PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME ortrain SUFFIX .o MACOSX_BUNDLE OFF)
target_link_options(prelinked PRIVATE -r -nostdlib)
if(LINK_TIME_OPTIMIZATION)  # here gcc 12 fails with more than one partition
  target_link_options(prelinked PRIVATE -flinker-output=nolto-rel -flto-partition=none)
endif()
set(EXPORTS ${CMAKE_BINARY_DIR}/exported_functions.txt)
if(APPLE)
  list(TRANSFORM FUNCTIONS PREPEND _)  # the linker makes all other symbols local
  target_link_options(prelinked PRIVATE -Wl,-exported_symbols_list,${EXPORTS})
  set(HIDE)
else()
  # Groups are dissolved: a linker would replace one whose symbols became local by a group of the same name in the program.
  target_link_options(prelinked PRIVATE -Wl,--force-group-allocation)
  foreach(LIBRARY libstdc++.a libgcc_eh.a libgcc.a)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${LIBRARY} OUTPUT_VARIABLE FILE
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    target_link_libraries(prelinked PRIVATE ${FILE})
  endforeach()
  # objcopy makes weak symbols local, but not unique ones, which a program would share with its own C++ library. The notes about
  # probes in the C++ library refer to a section that linkers leave out.
  set(HIDE COMMAND ${CMAKE_OBJCOPY} --strip-debug --remove-section=.note.stapsdt --remove-section=.stapsdt.base --wildcard
                   --weaken-symbol=_Z* $<TARGET_FILE:prelinked>
           COMMAND ${CMAKE_OBJCOPY} --keep-global-symbols=${EXPORTS} $<TARGET_FILE:prelinked>)
endif()
list(JOIN FUNCTIONS "\n" FUNCTIONS)
file(WRITE ${EXPORTS} "${FUNCTIONS}\n")
add_custom_command(
  OUTPUT libortrain.a
  ${HIDE}
  COMMAND ${CMAKE_COMMAND} -E rm -f libortrain.a
  COMMAND ${CMAKE_AR} qcs libortrain.a $<TARGET_FILE:prelinked>
  DEPENDS prelinked ${EXPORTS}
  VERBATIM)
add_custom_target(static DEPENDS libortrain.a)
