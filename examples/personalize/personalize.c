/* Fine-tunes a model on a folder of images with one folder per class; see README.md in this folder for
 * details. */
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"

static const OrtApi* ort;
static const OrtTrainingApi* training;
static const OrtrainApi* ortrain;
static OrtAllocator* allocator;
static OrtMemoryInfo* memory;

/* Errors. */

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

static void* grow(void* block, size_t bytes) {
  block = realloc(block, bytes);
  if (block == NULL) fail("out of memory");
  return block;
}

static char* join(const char* folder, const char* name) {
  char* path = allocate(strlen(folder) + strlen(name) + 2);
  sprintf(path, "%s/%s", folder, name);
  return path;
}

/* Samples. */

struct samples {
  float* pixels; /* `size` an image, from 0 to 1 */
  int64_t* labels;
  size_t count, size;
};

static int compare_names(const void* a, const void* b) { return strcmp(*(char* const*)a, *(char* const*)b); }

/* The entries of a folder, sorted by name, without hidden files. */
static char** entries(const char* folder, size_t* count) {
  DIR* directory = opendir(folder);
  if (directory == NULL) fail("%s: %s", folder, strerror(errno));
  char** names = NULL;
  *count = 0;
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    names = grow(names, (*count + 1) * sizeof *names);
    names[(*count)++] = strcpy(allocate(strlen(entry->d_name) + 1), entry->d_name);
  }
  closedir(directory);
  if (*count > 0) qsort(names, *count, sizeof *names, compare_names);
  return names;
}

static void free_names(char** names, size_t count) {
  for (size_t i = 0; i < count; ++i) free(names[i]);
  free(names);
}

/* A number in the header of an image, with the whitespace and comments before it; -1 if there is
 * none. */
static long read_number(FILE* file) {
  int c = getc(file);
  if (!isspace(c)) return -1;
  while (isspace(c) || c == '#') {
    if (c == '#')
      while (c != '\n' && c != EOF) c = getc(file);
    else
      c = getc(file);
  }
  long number = -1;
  for (; isdigit(c) && number < 100000000; c = getc(file))
    number = (number < 0 ? 0 : number * 10) + (c - '0');
  ungetc(c, file);
  return number;
}

/* Adds an image, which must have samples->size pixels, and its label. */
static void read_image(const char* path, int64_t label, struct samples* samples) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) fail("%s: %s", path, strerror(errno));
  const bool is_pgm = getc(file) == 'P' && getc(file) == '5';
  const long width = is_pgm ? read_number(file) : -1;
  const long height = width >= 0 ? read_number(file) : -1;
  const long greatest = height >= 0 ? read_number(file) : -1;
  if (greatest < 1 || greatest > 255 || !isspace(getc(file)))
    fail("%s: expected an 8-bit binary PGM image (P5)", path);

  const size_t size = samples->size;
  if ((size_t)width * (size_t)height != size)
    fail("%s: expected %zu pixels, found %ld x %ld", path, size, width, height);
  samples->pixels = grow(samples->pixels, (samples->count + 1) * size * sizeof *samples->pixels);
  samples->labels = grow(samples->labels, (samples->count + 1) * sizeof *samples->labels);
  float* pixels = samples->pixels + samples->count * size;
  size_t bytes = 0;
  for (int c; (c = getc(file)) != EOF; ++bytes)
    if (bytes < size) pixels[bytes] = (float)c / (float)greatest;
  if (bytes != size) fail("%s: expected %zu bytes of pixels, found %zu", path, size, bytes);
  samples->labels[samples->count++] = label;
  fclose(file);
}

static bool is_class(const char* folder, const char* name) {
  char* path = join(folder, name);
  struct stat status;
  const bool is_folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
  free(path);
  return is_folder && strspn(name, "0123456789") == strlen(name) && strlen(name) <= 9;
}

static int compare_classes(const void* a, const void* b) {
  return atoi(*(char* const*)a) - atoi(*(char* const*)b);
}

/* All samples, sorted by class and name; returns the number of classes. */
static size_t read_samples(const char* folder, struct samples* samples) {
  size_t class_count = 0;
  char** classes = entries(folder, &class_count);
  for (size_t i = 0; i < class_count; ++i)
    if (!is_class(folder, classes[i]))
      fail("%s/%s: expected a folder named by the number of its class", folder, classes[i]);
  if (class_count > 0) qsort(classes, class_count, sizeof *classes, compare_classes);
  for (size_t i = 0; i < class_count; ++i) {
    char* class_folder = join(folder, classes[i]);
    size_t image_count = 0;
    char** images = entries(class_folder, &image_count);
    for (size_t j = 0; j < image_count; ++j) {
      char* path = join(class_folder, images[j]);
      read_image(path, atoi(classes[i]), samples);
      free(path);
    }
    free_names(images, image_count);
    free(class_folder);
  }
  free_names(classes, class_count);
  return class_count;
}

/* SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

/* Fisher-Yates shuffle. */
static void shuffle(size_t* numbers, size_t count, uint64_t state) {
  for (size_t i = count - 1; i > 0; --i) {
    const size_t j = (size_t)(next_random(&state) % (i + 1));
    const size_t other = numbers[i];
    numbers[i] = numbers[j];
    numbers[j] = other;
  }
}

/* Training. */

enum { kMaxRank = 16, kMaxOutputs = 16 };

struct options {
  const char *artifacts, *samples, *out, *output, *resume;
  long epochs, batch, seed;
  float learning_rate;
};

struct trainer {
  OrtCheckpointState* state;
  OrtTrainingSession* session;
  int64_t shape[kMaxRank]; /* of the images; the first dimension is the batch */
  size_t rank;
  float* images; /* the batch that a step sees */
  int64_t* labels;
};

/* Queries the session for the shape of its images; returns the number of pixels per image. */
static size_t read_input_shape(struct trainer* trainer, const char* model) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  check(ortrain->GetModelInputTypeInfo(trainer->session, true, 0, &info));
  check(ort->GetTensorElementType(info, &type));
  check(ort->GetDimensionsCount(info, &trainer->rank));
  bool fits = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && trainer->rank > 0 && trainer->rank <= kMaxRank;
  size_t size = 1;
  if (fits) {
    check(ort->GetDimensions(info, trainer->shape, trainer->rank));
    fits = trainer->shape[0] == -1;
    for (size_t i = 1; i < trainer->rank; ++i) {
      fits = fits && trainer->shape[i] > 0;
      size *= (size_t)trainer->shape[i];
    }
  }
  ort->ReleaseTensorTypeAndShapeInfo(info);
  if (!fits)
    fail(
        "%s: expected a first input of floats with a variable batch and fixed dimensions, found type %d of "
        "rank "
        "%zu",
        model, (int)type, trainer->rank);
  return size;
}

/* Fills the batch with samples and wraps it as tensors. They share its memory; nothing is copied. */
static void make_inputs(struct trainer* trainer, const struct samples* samples, const size_t* numbers,
                        size_t count, OrtValue** inputs) {
  for (size_t i = 0; i < count; ++i) {
    memcpy(trainer->images + i * samples->size, samples->pixels + numbers[i] * samples->size,
           samples->size * sizeof *trainer->images);
    trainer->labels[i] = samples->labels[numbers[i]];
  }
  trainer->shape[0] = (int64_t)count;
  const size_t image_bytes = count * samples->size * sizeof *trainer->images;
  check(ort->CreateTensorWithDataAsOrtValue(memory, trainer->images, image_bytes, trainer->shape,
                                            trainer->rank, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[0]));
  check(ort->CreateTensorWithDataAsOrtValue(memory, trainer->labels, count * sizeof *trainer->labels,
                                            trainer->shape, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
                                            &inputs[1]));
}

static float scalar_of(OrtValue* value) {
  float* data = NULL;
  check(ort->GetTensorMutableData(value, (void**)&data));
  return *data;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Takes a step for every full batch; returns the mean loss. */
static double train_epoch(struct trainer* trainer, const struct samples* samples, const size_t* order,
                          size_t count, size_t batch, const char* title) {
  const size_t steps = count / batch;
  const double began = seconds();
  double total = 0;
  size_t outputs_len = 0;
  check(training->TrainingSessionGetTrainingModelOutputCount(trainer->session, &outputs_len));
  if (outputs_len > kMaxOutputs) fail("the training model has %zu outputs", outputs_len);
  for (size_t step = 1; step <= steps; ++step) {
    OrtValue *inputs[2] = {NULL, NULL}, *outputs[kMaxOutputs] = {NULL};
    make_inputs(trainer, samples, order + (step - 1) * batch, batch, inputs);
    check(
        training->TrainStep(trainer->session, NULL, 2, (const OrtValue* const*)inputs, outputs_len, outputs));
    check(training->OptimizerStep(trainer->session, NULL));
    check(training->LazyResetGrad(trainer->session));
    total += scalar_of(outputs[0]);
    for (size_t i = 0; i < outputs_len; ++i) ort->ReleaseValue(outputs[i]);
    for (size_t i = 0; i < 2; ++i) ort->ReleaseValue(inputs[i]);

    if (isatty(STDOUT_FILENO)) {
      char bar[] = "....................";
      memset(bar, '#', 20 * step / steps);
      printf("\r%s  [%s]  %zu/%zu  loss %.4f  %.0f samples/s", title, bar, step, steps, total / (double)step,
             (double)(step * batch) / (seconds() - began));
      fflush(stdout);
    }
  }
  return total / (double)steps;
}

/* Counts the samples whose highest score is that of their label; false if the value holds no scores. */
static bool count_right(OrtValue* scores, const int64_t* labels, size_t count, size_t* right) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  int64_t shape[2] = {0, 0};
  size_t rank = 0;
  check(ort->GetTensorTypeAndShape(scores, &info));
  check(ort->GetTensorElementType(info, &type));
  check(ort->GetDimensionsCount(info, &rank));
  if (rank == 2) check(ort->GetDimensions(info, shape, rank));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || rank != 2 || shape[0] != (int64_t)count) return false;

  const float* row = NULL;
  check(ort->GetTensorMutableData(scores, (void**)&row));
  for (size_t i = 0; i < count; ++i, row += shape[1]) {
    int64_t best = 0;
    for (int64_t j = 1; j < shape[1]; ++j)
      if (row[j] > row[best]) best = j;
    *right += best == labels[i];
  }
  return true;
}

/* The mean loss of some samples; `right` becomes the number classified correctly, or -1 if the model has no
 * scores. */
static double evaluate(struct trainer* trainer, const struct samples* samples, const size_t* numbers,
                       size_t count, size_t batch, long* right) {
  double total = 0;
  size_t outputs_len = 0, counted = 0;
  bool has_scores = false;
  check(training->TrainingSessionGetEvalModelOutputCount(trainer->session, &outputs_len));
  if (outputs_len > kMaxOutputs) fail("the eval model has %zu outputs", outputs_len);
  for (size_t start = 0; start < count; start += batch) {
    const size_t size = count - start < batch ? count - start : batch;
    OrtValue *inputs[2] = {NULL, NULL}, *outputs[kMaxOutputs] = {NULL};
    make_inputs(trainer, samples, numbers + start, size, inputs);
    check(
        training->EvalStep(trainer->session, NULL, 2, (const OrtValue* const*)inputs, outputs_len, outputs));
    total += (double)scalar_of(outputs[0]) * (double)size;
    if (outputs_len > 1) has_scores = count_right(outputs[1], trainer->labels, size, &counted);
    for (size_t i = 0; i < outputs_len; ++i) ort->ReleaseValue(outputs[i]);
    for (size_t i = 0; i < 2; ++i) ort->ReleaseValue(inputs[i]);
  }
  *right = has_scores ? (long)counted : -1;
  return total / (double)count;
}

/* Saves everything needed to resume. */
static void save(struct trainer* trainer, const char* path, int64_t epochs, float loss) {
  check(training->AddProperty(trainer->state, "epochs", OrtIntProperty, &epochs));
  check(training->AddProperty(trainer->state, "loss", OrtFloatProperty, &loss));
  check(training->SaveCheckpoint(trainer->state, path, true));
}

/* The number of epochs that a resumed checkpoint has completed. */
static int64_t epochs_behind(const struct trainer* trainer, const char* checkpoint) {
  OrtPropertyType type = OrtStringProperty;
  void* value = NULL;
  OrtStatus* status = training->GetProperty(trainer->state, "epochs", allocator, &type, &value);
  if (status != NULL || type != OrtIntProperty)
    fail("%s: expected a checkpoint that this program saved, with the property epochs", checkpoint);
  const int64_t epochs = *(const int64_t*)value;
  allocator->Free(allocator, value);
  return epochs;
}

/* The name of the value to export, to be freed. */
static char* choose_output(const struct trainer* trainer, const struct options* options,
                           const char* eval_model) {
  if (options->output != NULL) return strcpy(allocate(strlen(options->output) + 1), options->output);
  size_t count = 0;
  char* name = NULL;
  check(training->TrainingSessionGetEvalModelOutputCount(trainer->session, &count));
  if (count < 2)
    fail("%s: it has no output besides the loss; name a value to export with --output", eval_model);
  check(training->TrainingSessionGetEvalModelOutputName(trainer->session, 1, allocator, &name));
  char* copy = strcpy(allocate(strlen(name) + 1), name);
  allocator->Free(allocator, name);
  return copy;
}

static void personalize(const OrtEnv* env, const struct options* options) {
  struct trainer trainer = {0};
  char* first_checkpoint = join(options->artifacts, "checkpoint");
  char* train_model = join(options->artifacts, "training_model.onnx");
  char* eval_model = join(options->artifacts, "eval_model.onnx");
  char* optimizer_model = join(options->artifacts, "optimizer_model.onnx");
  const char* checkpoint = options->resume != NULL ? options->resume : first_checkpoint;

  OrtSessionOptions* session_options = NULL;
  check(ort->CreateSessionOptions(&session_options));
  check(training->LoadCheckpoint(checkpoint, &trainer.state));
  check(training->CreateTrainingSession(env, session_options, trainer.state, train_model, eval_model,
                                        optimizer_model, &trainer.session));
  ort->ReleaseSessionOptions(session_options);
  struct samples samples = {NULL, NULL, 0, read_input_shape(&trainer, train_model)};
  char* output = choose_output(&trainer, options, eval_model);

  const size_t classes = read_samples(options->samples, &samples);
  const size_t batch = (size_t)options->batch;
  const size_t held_out_count = samples.count / 5, train_count = samples.count - held_out_count;
  if (held_out_count < 1 || train_count < batch)
    fail("%s: expected at least 5 samples and %zu for training, found %zu and %zu", options->samples, batch,
         samples.count, train_count);
  const int64_t done = options->resume != NULL ? epochs_behind(&trainer, checkpoint) : 0;
  if (done >= options->epochs)
    fail("%s: it has %" PRId64 " epochs already; expected a larger --epochs, found %ld", checkpoint, done,
         options->epochs);
  if (mkdir(options->out, 0777) != 0 && errno != EEXIST) fail("%s: %s", options->out, strerror(errno));
  printf("%zu samples of %zu classes: %zu for training, %zu held out\n", samples.count, classes, train_count,
         held_out_count);
  fflush(stdout);

  trainer.images = allocate(batch * samples.size * sizeof *trainer.images);
  trainer.labels = allocate(batch * sizeof *trainer.labels);
  size_t* order = allocate(train_count * sizeof *order);
  size_t* held_out = allocate(held_out_count * sizeof *held_out);
  for (size_t i = 0; i < held_out_count; ++i) held_out[i] = 5 * i + 4;
  char* saved = join(options->out, "checkpoint");
  char* exported = join(options->out, "model.onnx");

  check(training->SetLearningRate(trainer.session, options->learning_rate));
  for (int64_t epoch = done + 1; epoch <= options->epochs; ++epoch) {
    char title[64];
    snprintf(title, sizeof title, "epoch %" PRId64 "/%ld", epoch, options->epochs);
    for (size_t i = 0, sample = 0; i < train_count; ++i, ++sample) {
      if (sample % 5 == 4) ++sample;
      order[i] = sample;
    }
    shuffle(order, train_count, ((uint64_t)options->seed << 32) + (uint64_t)epoch);
    const double loss = train_epoch(&trainer, &samples, order, train_count, batch, title);
    long right = 0;
    const double held_out_loss = evaluate(&trainer, &samples, held_out, held_out_count, batch, &right);

    /* On a terminal this overwrites the progress line and clears the rest of it. */
    const bool terminal = isatty(STDOUT_FILENO);
    printf("%s%s: loss %.4f, held-out loss %.4f", terminal ? "\r" : "", title, loss, held_out_loss);
    if (right >= 0) {
      const size_t tenths = (1000 * (size_t)right + held_out_count / 2) / held_out_count;
      printf(", accuracy %zu.%zu%%", tenths / 10, tenths % 10);
    }
    puts(terminal ? "\033[K" : "");
    fflush(stdout);
    save(&trainer, saved, epoch, (float)loss);
  }
  printf("saved %s\n", saved);
  const char* outputs[] = {output};
  check(training->ExportModelForInferencing(trainer.session, exported, 1, outputs));
  printf("exported %s with output %s\n", exported, output);

  training->ReleaseTrainingSession(trainer.session);
  training->ReleaseCheckpointState(trainer.state);
  void* const blocks[] = {first_checkpoint, train_model,    eval_model,     optimizer_model,
                          output,           saved,          exported,       order,
                          held_out,         trainer.images, trainer.labels, samples.pixels,
                          samples.labels};
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; ++i) free(blocks[i]);
}

/* The command line. */

static const char kUsage[] =
    "usage: personalize ARTIFACTS SAMPLES OUT [--epochs N] [--batch N] [--learning-rate X] [--seed N]\n"
    "                   [--output NAME] [--resume CHECKPOINT] [--help]\n";

static const char kHelp[] =
    "\n"
    "Fine-tunes a model on a folder of images with one folder per class.\n"
    "\n"
    "  ARTIFACTS            folder of the training artifacts\n"
    "  SAMPLES              folder with one folder of PGM images per class\n"
    "  OUT                  folder for the checkpoint and the trained model\n"
    "  --epochs N           total number of epochs (default 5)\n"
    "  --batch N            samples per step (default 16)\n"
    "  --learning-rate X    learning rate (default 0.001)\n"
    "  --seed N             seed of the shuffling (default 0)\n"
    "  --output NAME        value to export (default: the eval model's second output)\n"
    "  --resume CHECKPOINT  resume from a checkpoint that this program saved\n";

static void refuse_usage(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%spersonalize: error: ", kUsage);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(2);
}

static long whole_number(const char* option, const char* text, long lowest) {
  const bool digits = *text != '\0' && strspn(text, "0123456789") == strlen(text);
  const unsigned long long value = digits ? strtoull(text, NULL, 10) : 0;
  if (!digits || value < (unsigned long long)lowest || value > INT32_MAX)
    refuse_usage("%s: expected a whole number from %ld to %d, found %s", option, lowest, INT32_MAX, text);
  return (long)value;
}

static float rate(const char* option, const char* text) {
  char* end = NULL;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || !isfinite(value) || value <= 0)
    refuse_usage("%s: expected a finite number above 0, found %s", option, text);
  return (float)value;
}

static struct options read_command_line(int argc, char** argv) {
  struct options options = {.epochs = 5, .batch = 16, .learning_rate = 1e-3f};
  const char** positions[] = {&options.artifacts, &options.samples, &options.out};
  size_t given = 0;
  for (int i = 1; i < argc; ++i) {
    const char* option = argv[i];
    if (strcmp(option, "--help") == 0) {
      printf("%s%s", kUsage, kHelp);
      exit(0);
    }
    if (strncmp(option, "--", 2) != 0) {
      if (given == 3) refuse_usage("unexpected argument %s", option);
      *positions[given++] = option;
      continue;
    }
    if (i + 1 == argc) refuse_usage("%s: expected a value", option);
    const char* value = argv[++i];
    if (strcmp(option, "--epochs") == 0)
      options.epochs = whole_number(option, value, 1);
    else if (strcmp(option, "--batch") == 0)
      options.batch = whole_number(option, value, 1);
    else if (strcmp(option, "--learning-rate") == 0)
      options.learning_rate = rate(option, value);
    else if (strcmp(option, "--seed") == 0)
      options.seed = whole_number(option, value, 0);
    else if (strcmp(option, "--output") == 0)
      options.output = value;
    else if (strcmp(option, "--resume") == 0)
      options.resume = value;
    else
      refuse_usage("there is no option %s", option);
  }
  static const char* const names[] = {"ARTIFACTS", "SAMPLES", "OUT"};
  if (given < 3) refuse_usage("%s is missing", names[given]);
  return options;
}

int main(int argc, char** argv) {
  const struct options options = read_command_line(argc, argv);
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  training = ort->GetTrainingApi(ORT_API_VERSION);
  ortrain = OrtrainGetApi(ORTRAIN_API_VERSION);

  OrtEnv* env = NULL;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "personalize", &env));
  check(ort->GetAllocatorWithDefaultOptions(&allocator));
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  personalize(env, &options);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseEnv(env);
  return 0;
}
