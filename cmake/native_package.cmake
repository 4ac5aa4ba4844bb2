# What `cmake --install` and the archive of `cpack` contain: the library, its headers, files for pkg-config and CMake, and the licences
# of its parts. All paths in them are relative, so that the folder may be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(PACKAGE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/ortrain)
set(LICENSE_FOLDER ${CMAKE_INSTALL_DATADIR}/licenses/ortrain)

# Programs record the name with the major version. Android's package manager and Apple's application bundles take names without one.
if(CMAKE_SYSTEM_NAME STREQUAL Linux)
  set_target_properties(ortrain PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
endif()
target_include_directories(ortrain PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/ortrain>)
install(TARGETS ortrain EXPORT ortrain
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY core/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ortrain)
install(FILES LICENSE DESTINATION ${LICENSE_FOLDER})
install(DIRECTORY licenses/ DESTINATION ${LICENSE_FOLDER})

# find_package(ortrain CONFIG), which gives the target ortrain::ortrain.
install(EXPORT ortrain FILE ortrainConfig.cmake NAMESPACE ortrain:: DESTINATION ${PACKAGE_FOLDER})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ortrainConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ortrainConfigVersion.cmake DESTINATION ${PACKAGE_FOLDER})

# pkg-config ortrain. Its folder leads to the headers and the library.
set(PKGCONFIG_FOLDER ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
foreach(FOLDER INCLUDEDIR LIBDIR)
  file(RELATIVE_PATH FROM_PKGCONFIG /prefix/${PKGCONFIG_FOLDER} /prefix/${CMAKE_INSTALL_${FOLDER}})
  string(REGEX REPLACE "/$" "" PKGCONFIG_${FOLDER} \${pcfiledir}/${FROM_PKGCONFIG})
endforeach()
string(APPEND PKGCONFIG_INCLUDEDIR /ortrain)
configure_file(cmake/ortrain.pc.in ${CMAKE_BINARY_DIR}/ortrain.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ortrain.pc DESTINATION ${PKGCONFIG_FOLDER})

# The archive, ortrain-<version>-<system>-<processor>.tar.gz; `make archive`.
string(TOLOWER ${CMAKE_SYSTEM_NAME} CPACK_SYSTEM_NAME)
string(APPEND CPACK_SYSTEM_NAME -${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_GENERATOR TGZ)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Training of ONNX models on the device that runs them")
include(CPack)

if(APPLE OR CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  include(cmake/static_library.cmake)
endif()
