# libonnxruntime.so.1, for programs that were linked with onnxruntime: it has the symbol versions of onnxruntime's releases, and calls
# libortrain.
add_library(alias SHARED core/alias/generated/versions.cpp)
set(VERSIONS ${PROJECT_SOURCE_DIR}/core/alias/generated/versions.map)
target_link_libraries(alias PRIVATE ortrain)
target_link_options(alias PRIVATE ${PAGES} -Wl,--as-needed -Wl,--version-script=${VERSIONS})
include(CheckLinkerFlag)
check_linker_flag(CXX -Wl,-z,noseparate-code LINKER_JOINS_SEGMENTS)  # without padding between them
if(LINKER_JOINS_SEGMENTS)
  target_link_options(alias PRIVATE -Wl,-z,noseparate-code)
endif()
set_target_properties(alias PROPERTIES OUTPUT_NAME onnxruntime SUFFIX .so.1 LINK_DEPENDS ${VERSIONS}
                      BUILD_RPATH ${BESIDE} INSTALL_RPATH ${BESIDE})
if(ORTRAIN_PYTHON)
  # Not beside libortrain.so: programs may have that folder in their library path, and must not get ortrain instead of onnxruntime.
  # `ortrain alias` fills a folder with links to both libraries.
  set_target_properties(alias PROPERTIES INSTALL_RPATH "${BESIDE};${BESIDE}/..")
  install(TARGETS alias LIBRARY DESTINATION ortrain/lib/alias)
else()
  # The functions have no default version, which linkers need. Under the name without a number they therefore find libortrain.
  add_custom_command(TARGET alias POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_LINKER_FILE_NAME:ortrain>
                     $<TARGET_FILE_DIR:alias>/libonnxruntime.so)
  install(TARGETS alias LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES $<TARGET_FILE_DIR:alias>/libonnxruntime.so DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
