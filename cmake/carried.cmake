# Finds the headers of Highway and FlatBuffers, and generates the code of the ORT format and the formats of checkpoints and
# adapters. When a source distribution is made, collects all of these in the folder ${CARRIED}.
set(MADE ${CMAKE_BINARY_DIR}/made)
set(FORMATS)
set(SCHEMAS graph/ort_model state/adapter state/checkpoint)
if(EXISTS ${PROJECT_SOURCE_DIR}/PKG-INFO)  # in a source distribution
  set(HIGHWAY_INCLUDE ${CARRIED})
  set(FLATBUFFERS_INCLUDE ${CARRIED})
  file(COPY ${CARRIED}/made/ DESTINATION ${MADE})
else()
  find_path(HIGHWAY_INCLUDE hwy/highway.h REQUIRED)
  find_path(FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h REQUIRED)
  find_program(FLATC flatc REQUIRED)
  file(MAKE_DIRECTORY ${MADE})
  foreach(SCHEMA ${SCHEMAS})
    get_filename_component(NAME ${SCHEMA} NAME)
    add_custom_command(
      OUTPUT ${MADE}/${NAME}_generated.h
      COMMAND ${FLATC} --cpp -o ${MADE} ${PROJECT_SOURCE_DIR}/core/src/${SCHEMA}.fbs
      DEPENDS ${PROJECT_SOURCE_DIR}/core/src/${SCHEMA}.fbs)
    list(APPEND FORMATS ${MADE}/${NAME}_generated.h)
  endforeach()
endif()
add_custom_target(formats DEPENDS ${FORMATS})
add_custom_target(made DEPENDS ${FORMATS})

if(SKBUILD_STATE STREQUAL sdist)
  file(REMOVE_RECURSE ${CARRIED})
  file(GLOB HEADERS ${HIGHWAY_INCLUDE}/hwy/*.h)
  file(COPY ${HEADERS} DESTINATION ${CARRIED}/hwy)
  file(COPY ${HIGHWAY_INCLUDE}/hwy/ops ${HIGHWAY_INCLUDE}/hwy/contrib DESTINATION ${CARRIED}/hwy)
  file(COPY ${FLATBUFFERS_INCLUDE}/flatbuffers DESTINATION ${CARRIED} FILES_MATCHING PATTERN *.h)
  foreach(SCHEMA ${SCHEMAS})
    execute_process(COMMAND ${FLATC} --cpp -o ${CARRIED}/made ${PROJECT_SOURCE_DIR}/core/src/${SCHEMA}.fbs
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()
