// Compiling models ahead of time: what to read, and where to write it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "onnxruntime_c_api.h"
#include "session/options.h"

struct OrtExternalInitializerInfo {
  std::filesystem::path file;
  int64_t offset;
  size_t bytes;
};

struct OrtDeviceEpIncompatibilityDetails {};  // there is nothing to say about the CPU

struct OrtModelCompilationOptions {
  struct Bytes {
    const void* data;
    size_t size;
  };
  struct Buffer {
    OrtAllocator* allocator;
    void** data;
    size_t* size;
  };
  struct Writer {
    OrtWriteBufferFunc function;
    void* state;
  };
  ortrain::SessionOptions settings;
  std::variant<std::monostate, std::filesystem::path, Bytes, const OrtModel*> input;
  std::variant<std::monostate, std::filesystem::path, Buffer, Writer> output;
  std::filesystem::path weights;         // the file for large initializers; empty: none
  std::optional<Buffer> weights_memory;  // where they go instead of that file, which the model still names
  size_t largest_inside = 0;             // of the initializers that stay in the model then, in bytes
  size_t weights_alignment = 0;          // of the larger ones in the file; 0: the usual one
  size_t smallest_aligned = 0;           // of the initializers that it holds for, in bytes
  OrtGetInitializerLocationFunc locate = nullptr;
  void* locate_state = nullptr;
  uint32_t flags = 0;
  int level = 0;
};
