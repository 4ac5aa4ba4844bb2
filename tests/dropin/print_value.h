// Prints values of all kinds: tensors with their elements, and the parts of sequences and maps.
#pragma once
#include "program.h"

enum { kFloat = 1, kInt64 = 7, kString = 8 };  // types of elements

static void print_tensor(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  int type = 0;
  size_t count = 0, rank = 0;
  int64_t dims[8];
  OK(ort->GetTensorTypeAndShape(value, &info));
  OK(ort->GetTensorElementType(info, &type));
  OK(ort->GetTensorShapeElementCount(info, &count));
  OK(ort->GetDimensionsCount(info, &rank));
  OK(ort->GetDimensions(info, dims, rank));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  printf("  type %d, shape", type);
  for (size_t i = 0; i < rank; ++i) printf(" %d", (int)dims[i]);
  printf(":");
  void* data = NULL;
  if (type != kString) OK(ort->GetTensorMutableData((OrtValue*)value, &data));
  for (size_t i = 0; i < count; ++i) {
    if (type == kFloat) printf(" %g", ((float*)data)[i]);
    if (type == kInt64) printf(" %d", (int)((int64_t*)data)[i]);
    if (type == kString) {
      char text[64] = {0};
      size_t length = 0;
      OK(ort->GetStringTensorElementLength(value, i, &length));
      OK(ort->GetStringTensorElement(value, length, i, text));
      printf(" %s", text);
    }
  }
  printf("\n");
}

static void print_value(const OrtValue* value, OrtAllocator* allocator) {
  int kind = 0;
  OK(ort->GetValueType(value, &kind));
  if (kind == 1) {
    print_tensor(value);
    return;
  }
  size_t count = 0;
  OK(ort->GetValueCount(value, &count));
  printf("  kind %d of %zu\n", kind, count);
  for (size_t i = 0; i < count; ++i) {
    OrtValue* part = NULL;
    OK(ort->GetValue(value, (int)i, allocator, &part));
    print_value(part, allocator);
    ort->ReleaseValue(part);
  }
  OrtValue* part = NULL;
  if (kind == 3) CODE(ort->GetValue(value, 99, allocator, &part));
}
