/* Trains with the C interface: ./train ARTIFACTS IMAGES LABELS EXPORTED OUTPUT
 *
 * IMAGES holds float32 rows of 64 numbers, LABELS one int64 for each row, both as raw bytes in the machine's
 * order. The trained model is written to EXPORTED with OUTPUT as its output, the checkpoint to EXPORTED.ckpt.
 */
#include <stdio.h>
#include <stdlib.h>

#include "onnxruntime_training_c_api.h"

enum { kBatch = 16, kWidth = 64, kEpochs = 5 };

static const OrtApi* ort;
static const OrtTrainingApi* training;

/* Every call that can fail returns a status; null means success. */
static void check(OrtStatus* status) {
  if (status == NULL) return;
  fprintf(stderr, "error %d: %s\n", (int)ort->GetErrorCode(status), ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  exit(1);
}

static size_t read_file(const char* path, void* data, size_t bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  const size_t found = fread(data, 1, bytes, file);
  fclose(file);
  return found;
}

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: %s ARTIFACTS IMAGES LABELS EXPORTED OUTPUT\n", argv[0]);
    return 2;
  }
  char checkpoint[4096], train_model[4096], eval_model[4096], optimizer_model[4096];
  snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint", argv[1]);
  snprintf(train_model, sizeof train_model, "%s/training_model.onnx", argv[1]);
  snprintf(eval_model, sizeof eval_model, "%s/eval_model.onnx", argv[1]);
  snprintf(optimizer_model, sizeof optimizer_model, "%s/optimizer_model.onnx", argv[1]);

  static float images[1 << 16][kWidth];
  static int64_t labels[1 << 16];
  const size_t rows = read_file(argv[2], images, sizeof images) / sizeof images[0];
  if (read_file(argv[3], labels, sizeof labels) / sizeof labels[0] != rows) {
    fprintf(stderr, "expected one label for each of the %zu rows of %s\n", rows, argv[2]);
    return 1;
  }

  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  training = ort->GetTrainingApi(ORT_API_VERSION);

  OrtEnv* env = NULL;
  OrtSessionOptions* options = NULL;
  OrtMemoryInfo* memory = NULL;
  OrtCheckpointState* state = NULL;
  OrtTrainingSession* session = NULL;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "train", &env));
  check(ort->CreateSessionOptions(&options));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  check(training->LoadCheckpoint(checkpoint, &state));
  check(training->CreateTrainingSession(env, options, state, train_model, eval_model, optimizer_model,
                                        &session));
  check(training->SetLearningRate(session, 1e-3f));

  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    double sum = 0;
    int steps = 0;
    for (size_t row = 0; row + kBatch <= rows; row += kBatch, ++steps) {
      const int64_t image_shape[] = {kBatch, kWidth}, label_shape[] = {kBatch};
      OrtValue *inputs[2] = {NULL, NULL}, *loss = NULL;
      /* The tensors look into our memory; nothing is copied. */
      check(ort->CreateTensorWithDataAsOrtValue(memory, images[row], kBatch * sizeof images[0], image_shape,
                                                2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[0]));
      check(ort->CreateTensorWithDataAsOrtValue(memory, &labels[row], kBatch * sizeof labels[0], label_shape,
                                                1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &inputs[1]));
      check(training->TrainStep(session, NULL, 2, (const OrtValue* const*)inputs, 1, &loss));
      check(training->OptimizerStep(session, NULL));
      check(training->LazyResetGrad(session));

      float* value = NULL;
      check(ort->GetTensorMutableData(loss, (void**)&value));
      sum += *value;
      ort->ReleaseValue(loss);
      ort->ReleaseValue(inputs[0]);
      ort->ReleaseValue(inputs[1]);
    }
    printf("epoch %d: loss %.4f\n", epoch, sum / steps);
  }

  char saved[4096];
  snprintf(saved, sizeof saved, "%s.ckpt", argv[4]);
  check(training->SaveCheckpoint(state, saved, true));
  const char* outputs[] = {argv[5]};
  check(training->ExportModelForInferencing(session, argv[4], 1, outputs));

  training->ReleaseTrainingSession(session);
  training->ReleaseCheckpointState(state);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  return 0;
}
