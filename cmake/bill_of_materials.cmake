# Writes what the package is compiled from, as CycloneDX, into the wheel's dist-info/sboms (PEP 770). Versions are those of the
# headers that this build found.
foreach(PART MAJOR MINOR PATCH)
  file(STRINGS ${HIGHWAY_INCLUDE}/hwy/highway.h LINE REGEX "#define HWY_${PART} [0-9]+" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+" NUMBER "${LINE}")
  list(APPEND HIGHWAY_NUMBERS ${NUMBER})
endforeach()
foreach(PART MAJOR MINOR REVISION)
  file(STRINGS ${FLATBUFFERS_INCLUDE}/flatbuffers/base.h LINE REGEX "#define FLATBUFFERS_VERSION_${PART} [0-9]+" LIMIT_COUNT 1)
  string(REGEX MATCH "[0-9]+" NUMBER "${LINE}")
  list(APPEND FLATBUFFERS_NUMBERS ${NUMBER})
endforeach()
list(JOIN HIGHWAY_NUMBERS . HIGHWAY_VERSION)
list(JOIN FLATBUFFERS_NUMBERS . FLATBUFFERS_VERSION)
set(FLATBUFFERS_TAG v${FLATBUFFERS_VERSION})
# The compiler of ziglang links its C++ library into ours.
set(LIBCXX_COMPONENT)
set(LIBCXX_REFERENCE)
if(ZIG_TOOLS)
  set(ZIG_FOLDER ${ZIG_TOOLS}/python/ziglang)
endif()
if(ZIG_FOLDER)
  file(STRINGS ${ZIG_FOLDER}/lib/libcxx/include/__config LINE REGEX "define _LIBCPP_VERSION [0-9]+" LIMIT_COUNT 1)
  string(REGEX REPLACE ".*_LIBCPP_VERSION ([0-9]+)([0-9][0-9])([0-9][0-9])$" "\\1;\\2;\\3" LIBCXX_NUMBERS "${LINE}")
  list(TRANSFORM LIBCXX_NUMBERS REPLACE "^0" "")
  list(JOIN LIBCXX_NUMBERS . LIBCXX_VERSION)
  set(LIBCXX_PURL pkg:github/llvm/llvm-project@llvmorg-${LIBCXX_VERSION})
  set(LIBCXX_REFERENCE ",\n        \"${LIBCXX_PURL}\"")
  set(LIBCXX_COMPONENT ",
    {
      \"type\": \"library\",
      \"bom-ref\": \"${LIBCXX_PURL}\",
      \"name\": \"libc++\",
      \"version\": \"${LIBCXX_VERSION}\",
      \"purl\": \"${LIBCXX_PURL}\",
      \"licenses\": [{\"expression\": \"Apache-2.0 WITH LLVM-exception\"}]
    }")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/bill_of_materials.json.in ${CMAKE_BINARY_DIR}/ortrain.cdx.json @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ortrain.cdx.json DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
