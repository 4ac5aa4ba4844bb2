// A program for onnxruntime's C++ interface: strings, sequences and memory of allocators.
#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#define CHECK(condition)                                                       \
  if (!(condition)) {                                                          \
    std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
    return 1;                                                                  \
  }

int main(int, char** argv) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "client");
  Ort::AllocatorWithDefaultOptions cpu;
  Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);

  const int64_t two[] = {2};
  Ort::Value texts = Ort::Value::CreateTensor(cpu, two, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
  const char* const words[] = {"one", "two"};
  texts.FillStringTensor(words, 2);
  texts.FillStringTensorElement("three", 1);
  CHECK(texts.GetStringTensorElement(0) == "one" && texts.GetStringTensorElement(1) == "three");
  CHECK(texts.GetStringTensorDataLength() == 8 && texts.GetStringTensorElementLength(1) == 5);
  std::memcpy(texts.GetResizedStringTensorElementBuffer(0, 4), "four", 4);
  char content[9];
  size_t offsets[2];
  texts.GetStringTensorContent(content, sizeof content, offsets, 2);
  CHECK(std::string(content, 9) == "fourthree" && offsets[0] == 0 && offsets[1] == 4);

  float a[] = {1, 2}, b[] = {3};
  const int64_t one[] = {1};
  std::vector<Ort::Value> parts;
  parts.push_back(Ort::Value::CreateTensor<float>(memory, a, 2, two, 1));
  parts.push_back(Ort::Value::CreateTensor<float>(memory, b, 1, one, 1));
  Ort::Value sequence = Ort::Value::CreateSequence(parts);
  CHECK(sequence.GetCount() == 2 && !sequence.IsTensor());
  CHECK(sequence.GetTypeInfo().GetONNXType() == ONNX_TYPE_SEQUENCE);
  CHECK(sequence.GetValue(0, cpu).GetTensorData<float>()[1] == 2);

  Ort::Session session(env, argv[1], Ort::SessionOptions());
  Ort::Allocator allocator(session, memory);
  Ort::MemoryAllocation block = allocator.GetAllocation(64);
  std::memset(block.get(), 1, block.size());
  Ort::MemoryAllocation moved = std::move(block);
  CHECK(moved.size() == 64 && static_cast<char*>(moved.get())[63] == 1 && block.get() == nullptr);
  void* plain = allocator.Alloc(8);
  CHECK(plain != nullptr);
  allocator.Free(plain);
  std::puts("done");
  return 0;
}
