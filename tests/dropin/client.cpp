// A program for onnxruntime's C++ interface: strings, sequences, sparse tensors and memory of allocators.
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

  const int64_t square[] = {3, 3}, three[] = {3}, blocks[] = {1, 2, 2}, places[] = {2, 1};
  float numbers[] = {1.5f, 2, -3, 4};
  int64_t columns[] = {2, 0, 2}, rows[] = {0, 1, 3, 3};
  int32_t at[] = {0, 0};
  Ort::Value sparse = Ort::Value::CreateSparseTensor<float>(memory, numbers, {square, 2}, {three, 1});
  CHECK(sparse.IsSparseTensor() && sparse.GetSparseFormat() == ORT_SPARSE_UNDEFINED);
  sparse.UseCsrIndices(columns, 3, rows, 4);
  size_t count = 0;
  CHECK(sparse.GetSparseTensorIndicesData<int64_t>(ORT_SPARSE_CSR_OUTER_INDICES, count) == rows &&
        count == 4);
  CHECK(sparse.GetSparseTensorValues<float>() == numbers);
  CHECK(sparse.GetSparseTensorValuesTypeAndShapeInfo().GetShape() == std::vector<int64_t>{3});
  CHECK(sparse.GetTensorTypeAndShapeInfo().GetShape() == std::vector<int64_t>({3, 3}));
  Ort::Value filled = Ort::Value::CreateSparseTensor<float>(cpu, {square, 2});
  Ort::OrtSparseValuesParam values = {three, 1, {numbers}};
  filled.FillSparseTensorCoo(memory, values, columns, 3);
  CHECK(filled.GetSparseTensorIndicesTypeShapeInfo(ORT_SPARSE_COO_INDICES).GetShape() ==
        std::vector<int64_t>{3});
  CHECK(filled.GetSparseTensorValues<float>()[2] == -3);
  Ort::Value in_rows = Ort::Value::CreateSparseTensor<float>(cpu, {square, 2});
  in_rows.FillSparseTensorCsr(memory, values, columns, 3, rows, 4);
  CHECK(in_rows.GetSparseFormat() == ORT_SPARSE_CSRC);
  Ort::Value in_blocks = Ort::Value::CreateSparseTensor<float>(cpu, {square, 2});
  in_blocks.FillSparseTensorBlockSparse(memory, {blocks, 3, {numbers}}, {places, 2}, at);
  CHECK(in_blocks.GetSparseFormat() == ORT_SPARSE_BLOCK_SPARSE);
  Ort::Value over_blocks = Ort::Value::CreateSparseTensor<float>(memory, numbers, {square, 2}, {blocks, 3});
  over_blocks.UseBlockSparseIndices({places, 2}, at);
  Ort::Value over_pairs = Ort::Value::CreateSparseTensor<float>(memory, numbers, {square, 2}, {three, 1});
  over_pairs.UseCooIndices(columns, 3);
  CHECK(over_pairs.GetTypeInfo().GetONNXType() == ONNX_TYPE_SPARSETENSOR);

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
