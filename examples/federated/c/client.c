/* A client of a federation without Python: trains with the C table on the rows of a file and exchanges its
 * parameters in files.
 *
 *     client ARTIFACTS TRAIN TEST REQUEST REPLY
 *
 * TRAIN and TEST are files of rows: uint64 rows, uint64 elements of a row, float32[rows * elements],
 * int64[rows] labels. docs/tutorial-federated.md describes REQUEST and REPLY. All numbers are little-endian,
 * as they are on the processors that this program is meant for. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"

static const OrtApi* ort;
static const OrtTrainingApi* training;
static const OrtrainApi* ortrain;
static OrtMemoryInfo* memory;

static void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("error: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

/* Every call that can fail returns a status; null means success. */
static void check(OrtStatus* status) {
  if (status != NULL) fail("%s", ort->GetErrorMessage(status));
}

static void* allocate(size_t bytes) {
  void* block = malloc(bytes > 0 ? bytes : 1);
  if (block == NULL) fail("out of memory");
  return block;
}

static char* join(const char* folder, const char* name) {
  char* path = allocate(strlen(folder) + strlen(name) + 2);
  sprintf(path, "%s/%s", folder, name);
  return path;
}

/* Files. */

static unsigned char* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) fail("%s: %s", path, strerror(errno));
  if (fseek(file, 0, SEEK_END) != 0) fail("%s: %s", path, strerror(errno));
  const long length = ftell(file);
  if (length < 0) fail("%s: %s", path, strerror(errno));
  rewind(file);
  *size = (size_t)length;
  unsigned char* bytes = allocate(*size);
  if (fread(bytes, 1, *size, file) != *size) fail("%s: cannot be read", path);
  fclose(file);
  return bytes;
}

struct rows {
  uint64_t count, size; /* rows, and elements of each */
  const float* values;
  const int64_t* labels;
};

static struct rows read_rows(const char* path) {
  size_t length;
  unsigned char* bytes = read_file(path, &length);
  struct rows rows = {0};
  if (length < 16) fail("%s: expected a heading of 16 bytes, found %zu", path, length);
  memcpy(&rows.count, bytes, 8);
  memcpy(&rows.size, bytes + 8, 8);
  if (rows.count < 1 || rows.count > 1u << 30 || rows.size < 1 || rows.size > 1u << 30 ||
      length != 16 + rows.count * (4 * rows.size + 8))
    fail("%s: expected the bytes of %" PRIu64 " rows of %" PRIu64 " elements, found %zu", path, rows.count,
         rows.size, length);
  /* Copied, as labels may not be aligned in the file. */
  float* values = allocate(rows.count * rows.size * sizeof *values);
  int64_t* labels = allocate(rows.count * sizeof *labels);
  memcpy(values, bytes + 16, rows.count * rows.size * sizeof *values);
  memcpy(labels, bytes + 16 + rows.count * rows.size * sizeof *values, rows.count * sizeof *labels);
  free(bytes);
  rows.values = values;
  rows.labels = labels;
  return rows;
}

enum { TRAIN = 1, EVALUATE = 2, FLOAT = 1 };

struct heading {
  char magic[8];
  uint32_t kind, type;
  uint64_t elements, round;
  uint64_t seed_or_rows, epochs, batch;
  double rate_or_loss;
};

static const char magic[8] = {'O', 'R', 'T', 'R', 'F', 'E', 'D', '1'};

/* Writes the reply under another name and renames it, so that it is never there in part. */
static void write_reply(const char* path, const struct heading* heading, const float* parameters) {
  char* partial = allocate(strlen(path) + sizeof ".partial");
  sprintf(partial, "%s.partial", path);
  FILE* file = fopen(partial, "wb");
  if (file == NULL) fail("%s: %s", partial, strerror(errno));
  const size_t count = (size_t)heading->elements;
  if (fwrite(heading, sizeof *heading, 1, file) != 1 ||
      fwrite(parameters, sizeof *parameters, count, file) != count || fclose(file) != 0 ||
      rename(partial, path) != 0)
    fail("%s: %s", path, strerror(errno));
  free(partial);
}

/* Tensors. */

static OrtValue* tensor(void* data, size_t bytes, const int64_t* shape, size_t rank,
                        ONNXTensorElementDataType type) {
  OrtValue* value;
  check(ort->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape, rank, type, &value));
  return value;
}

/* The shape of the first input of the model; its first dimension is the batch. */
static size_t shape_of_rows(const OrtTrainingSession* session, int64_t* shape, size_t limit) {
  OrtTensorTypeAndShapeInfo* info;
  size_t rank;
  check(ortrain->GetModelInputTypeInfo(session, true, 0, &info));
  check(ort->GetDimensionsCount(info, &rank));
  if (rank < 2 || rank > limit)
    fail("expected a model whose first input has 2 to %zu dimensions, found %zu", limit, rank);
  check(ort->GetDimensions(info, shape, rank));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  return rank;
}

/* Numbers of SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t next(uint64_t* state) {
  uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

/* What the server asks for: a heading, and the parameters behind it, to be freed with the whole. */
static unsigned char* read_request(const char* path, struct heading* heading) {
  size_t size;
  unsigned char* request = read_file(path, &size);
  if (size < sizeof *heading)
    fail("%s: expected a heading of %zu bytes, found %zu", path, sizeof *heading, size);
  memcpy(heading, request, sizeof *heading);
  if (memcmp(heading->magic, magic, sizeof magic) != 0 ||
      (heading->kind != TRAIN && heading->kind != EVALUATE) || heading->type != FLOAT || heading->batch < 1)
    fail("%s: expected a request to train or to evaluate float32", path);
  if (heading->elements > size / 4 || size != sizeof *heading + 4 * heading->elements)
    fail("%s: expected %" PRIu64 " elements, found %zu bytes", path, heading->elements,
         size - sizeof *heading);
  return request;
}

static OrtTrainingSession* make_session(const OrtEnv* env, const OrtSessionOptions* options,
                                        const char* folder, OrtCheckpointState** state) {
  char *checkpoint = join(folder, "checkpoint"), *train_model = join(folder, "training_model.onnx");
  char *eval_model = join(folder, "eval_model.onnx"), *optimizer = join(folder, "optimizer_model.onnx");
  OrtTrainingSession* session;
  check(training->LoadCheckpoint(checkpoint, state));
  check(training->CreateTrainingSession(env, options, *state, train_model, eval_model, optimizer, &session));
  free(checkpoint), free(train_model), free(eval_model), free(optimizer);
  return session;
}

/* A train step with its update, or an eval step. The loss. */
static float step(OrtTrainingSession* session, bool train, const OrtValue* const* inputs, size_t count) {
  OrtValue* outputs[8] = {NULL};
  size_t results = 1;
  if (train)
    check(training->TrainingSessionGetTrainingModelOutputCount(session, &results));
  else
    check(training->TrainingSessionGetEvalModelOutputCount(session, &results));
  if (results > 8) fail("the model has %zu outputs; this program takes up to 8", results);
  if (train) {
    check(training->TrainStep(session, NULL, count, inputs, results, outputs));
    check(training->OptimizerStep(session, NULL));
    check(training->LazyResetGrad(session));
  } else {
    check(training->EvalStep(session, NULL, count, inputs, results, outputs));
  }
  void* found;
  check(ort->GetTensorMutableData(outputs[0], &found)); /* the loss comes first */
  const float loss = *(const float*)found;
  for (size_t i = 0; i < results; ++i) ort->ReleaseValue(outputs[i]);
  return loss;
}

/* Takes all rows in batches, as often as the server asks for. The mean loss of the last pass. */
static double take_rows(OrtTrainingSession* session, const struct heading* heading, const struct rows* rows) {
  int64_t shape[8];
  const size_t rank = shape_of_rows(session, shape, 8);
  uint64_t row = 1;
  for (size_t i = 1; i < rank; ++i) row *= (uint64_t)shape[i];
  if (row != rows->size) fail("expected rows of %" PRIu64 " elements, found %" PRIu64, row, rows->size);

  const bool train = heading->kind == TRAIN;
  uint64_t* order = allocate(rows->count * sizeof *order);
  for (uint64_t i = 0; i < rows->count; ++i) order[i] = i;
  float* values = allocate(heading->batch * row * sizeof *values);
  int64_t* labels = allocate(heading->batch * sizeof *labels);
  uint64_t random = heading->seed_or_rows << 32 | (heading->round & UINT32_MAX);
  double loss = 0;
  for (uint64_t pass = 0; pass < (train ? heading->epochs : 1); ++pass) {
    for (uint64_t i = rows->count; train && i-- > 1;) {
      const uint64_t j = next(&random) % (i + 1), kept = order[i];
      order[i] = order[j];
      order[j] = kept;
    }
    loss = 0;
    for (uint64_t first = 0; first < rows->count; first += heading->batch) {
      const uint64_t here = rows->count - first < heading->batch ? rows->count - first : heading->batch;
      for (uint64_t i = 0; i < here; ++i) {
        memcpy(values + i * row, rows->values + order[first + i] * row, row * sizeof *values);
        labels[i] = rows->labels[order[first + i]];
      }
      shape[0] = (int64_t)here;
      OrtValue* inputs[] = {
          tensor(values, here * row * sizeof *values, shape, rank, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
          tensor(labels, here * sizeof *labels, shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64),
      };
      const float found = step(session, train, (const OrtValue* const*)inputs, 2);
      loss += (double)found * (double)here / (double)rows->count;
      for (size_t i = 0; i < 2; ++i) ort->ReleaseValue(inputs[i]);
    }
  }
  free(order), free(values), free(labels);
  return loss;
}

int main(int count, char** arguments) {
  if (count != 6) fail("usage: client ARTIFACTS TRAIN TEST REQUEST REPLY");
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  training = ort->GetTrainingApi(ORT_API_VERSION);
  ortrain = OrtrainGetApi(ORTRAIN_API_VERSION);

  struct heading heading;
  unsigned char* request = read_request(arguments[4], &heading);
  const struct rows rows = read_rows(arguments[heading.kind == TRAIN ? 2 : 3]);

  OrtEnv* env;
  OrtSessionOptions* options;
  OrtCheckpointState* state;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "client", &env));
  check(ort->CreateSessionOptions(&options));
  check(ort->SetIntraOpNumThreads(options, 1));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  OrtTrainingSession* session = make_session(env, options, arguments[1], &state);

  /* The parameters of the server take the place of those of the checkpoint. */
  size_t elements;
  check(training->GetParametersSize(session, &elements, true));
  if (elements != heading.elements)
    fail("%s: expected %zu elements, those of the model, found %" PRIu64, arguments[4], elements,
         heading.elements);
  float* parameters = allocate(elements * sizeof *parameters);
  memcpy(parameters, request + sizeof heading, elements * sizeof *parameters);
  const int64_t all[] = {(int64_t)elements};
  OrtValue* buffer =
      tensor(parameters, elements * sizeof *parameters, all, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  check(training->CopyBufferToParameters(session, buffer, true));
  if (heading.kind == TRAIN && heading.rate_or_loss != 0)
    check(training->SetLearningRate(session, (float)heading.rate_or_loss));

  const double loss = take_rows(session, &heading, &rows);
  check(training->CopyParametersToBuffer(session, buffer, true));

  struct heading reply = {
      .kind = heading.kind, .type = FLOAT, .round = heading.round, .seed_or_rows = rows.count};
  memcpy(reply.magic, magic, sizeof magic);
  reply.elements = heading.kind == TRAIN ? elements : 0;
  reply.rate_or_loss = loss;
  write_reply(arguments[5], &reply, parameters);

  ort->ReleaseValue(buffer);
  ort->ReleaseMemoryInfo(memory);
  training->ReleaseTrainingSession(session);
  training->ReleaseCheckpointState(state);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  free(parameters), free(request);
  free((void*)rows.values), free((void*)rows.labels);
}
