# protobuf's own classes of the messages of ONNX, with which tests make models and check the core's reader.
find_program(PROTOC protoc REQUIRED)
find_path(PROTOBUF_INCLUDE google/protobuf/message_lite.h REQUIRED)
find_library(PROTOBUF_LIBRARY NAMES protobuf-lite REQUIRED)
execute_process(COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/locate.py onnx-proto
                OUTPUT_VARIABLE ONNX_PROTO OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
get_filename_component(ONNX_PROTO_DIR ${ONNX_PROTO} DIRECTORY)
set(MESSAGES ${CMAKE_BINARY_DIR}/messages)
file(MAKE_DIRECTORY ${MESSAGES})
add_custom_command(
  OUTPUT ${MESSAGES}/onnx-ml.pb.cc ${MESSAGES}/onnx-ml.pb.h
  COMMAND ${PROTOC} --proto_path=${ONNX_PROTO_DIR} --cpp_out=lite:${MESSAGES} ${ONNX_PROTO}
  DEPENDS ${ONNX_PROTO})
set_property(SOURCE ${MESSAGES}/onnx-ml.pb.cc APPEND PROPERTY COMPILE_OPTIONS -w)
add_library(onnx_messages STATIC EXCLUDE_FROM_ALL ${MESSAGES}/onnx-ml.pb.cc ${MESSAGES}/onnx-ml.pb.h)
target_include_directories(onnx_messages SYSTEM PUBLIC ${MESSAGES} ${PROTOBUF_INCLUDE})
target_link_libraries(onnx_messages PUBLIC ${PROTOBUF_LIBRARY} Threads::Threads)
