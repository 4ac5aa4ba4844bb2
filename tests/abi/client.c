// A client like those of onnxruntime's users: compiled with the layout of a release, it runs a model forward
// and takes training steps. Prints the outputs of the model for its first input, and the losses.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "layout.h"

enum { kFloat = 1, kInt64 = 7, kRows = 16, kColumns = 64, kSteps = 5 };

static const OrtApi* api;

static void ok(OrtStatus* status) {
  if (!status) return;
  printf("%s\n", api->GetErrorMessage(status));
  exit(1);
}

// The elements and their count, read with the newest calls that the release has.
static const float* elements(OrtValue* value, size_t* count) {
#if VERSION >= 23
  const void* data = NULL;
  size_t bytes = 0;
  ok(api->GetTensorData(value, &data));
  ok(api->GetTensorSizeInBytes(value, &bytes));
  *count = bytes / sizeof(float);
#else
  void* data = NULL;
  OrtTensorTypeAndShapeInfo* info = NULL;
  ok(api->GetTensorMutableData(value, &data));
  ok(api->GetTensorTypeAndShape(value, &info));
  ok(api->GetTensorShapeElementCount(info, count));
  api->ReleaseTensorTypeAndShapeInfo(info);
#endif
  return data;
}

static OrtValue* tensor(OrtMemoryInfo* memory, void* data, size_t bytes, size_t rank, int type) {
  const int64_t shape[] = {kRows, kColumns};
  OrtValue* value = NULL;
  ok(api->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape, rank, type, &value));
  return value;
}

// Arguments: the folder of a recorded run, and a file with its first input and labels.
int main(int argc, char** argv) {
  static float x[kRows * kColumns];
  static int64_t y[kRows];
  FILE* file = argc == 3 ? fopen(argv[2], "rb") : NULL;
  if (!file || fread(x, sizeof x, 1, file) != 1 || fread(y, sizeof y, 1, file) != 1) return 2;
  fclose(file);
  if (chdir(argv[1]) != 0) return 2;

  const OrtApiBase* base = OrtGetApiBase();
  printf("version %s\n", base->GetVersionString());
  api = base->GetApi(VERSION);
  if (!api) return 3;
  const OrtTrainingApi* training = api->GetTrainingApi(VERSION);
  if (!training) return 3;
#if VERSION >= 22
  if (!api->GetCompileApi() || !api->GetModelEditorApi()) return 3;
#endif
  OrtEnv* env = NULL;
  OrtSessionOptions* options = NULL;
  OrtMemoryInfo* memory = NULL;
  ok(api->CreateEnv(2, "client", &env));
  ok(api->CreateSessionOptions(&options));
  ok(api->CreateCpuMemoryInfo(1, 0, &memory));
  OrtValue* const inputs[] = {tensor(memory, x, sizeof x, 2, kFloat), tensor(memory, y, sizeof y, 1, kInt64)};

  OrtSession* session = NULL;
  ok(api->CreateSession(env, "exported_after.onnx", options, &session));
  const char* const input_names[] = {"input"};
  const char* const output_names[] = {"output"};
  OrtValue* output = NULL;
  ok(api->Run(session, NULL, input_names, (const OrtValue* const*)inputs, 1, output_names, 1, &output));
  size_t count = 0;
  const float* values = elements(output, &count);
  for (size_t i = 0; i < count; ++i) printf("output %.9g\n", values[i]);
  api->ReleaseValue(output);
  api->ReleaseSession(session);

  OrtCheckpointState* state = NULL;
  OrtTrainingSession* trained = NULL;
  ok(training->LoadCheckpoint("checkpoint", &state));
  ok(training->CreateTrainingSession(env, options, state, "training_model.onnx", "eval_model.onnx",
                                     "optimizer_model.onnx", &trained));
  for (int step = 0; step < kSteps; ++step) {
    OrtValue* loss = NULL;
    ok(training->TrainStep(trained, NULL, 2, (const OrtValue* const*)inputs, 1, &loss));
    ok(training->OptimizerStep(trained, NULL));
    ok(training->LazyResetGrad(trained));
    printf("loss %.9g\n", elements(loss, &count)[0]);
    api->ReleaseValue(loss);
  }
  training->ReleaseTrainingSession(trained);
  training->ReleaseCheckpointState(state);
  for (size_t i = 0; i < 2; ++i) api->ReleaseValue(inputs[i]);
  api->ReleaseMemoryInfo(memory);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  return 0;
}
