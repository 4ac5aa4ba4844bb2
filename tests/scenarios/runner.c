/* Runs a scenario with the C API; README.md beside this file says what a scenario is. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <psapi.h>
#endif

#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"

enum { kTokens = 64, kRank = 8 };

static const OrtApi* ort;
static const OrtTrainingApi* training;
static const OrtrainApi* extension;
static OrtEnv* env;
static OrtAllocator* allocator;

static const char *script_path, *data_folder, *out_folder;
static size_t script_line;
static const char* command = "";
static bool logging = true;

/* Ends the runner: the script is at fault, or something went otherwise than it says. */
static void stop(const char* format, ...) {
  fflush(stdout);
  fprintf(stderr, "%s:%zu: %s: ", script_path, script_line, command);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

static void write_log(const char* format, ...) {
  if (!logging) return;
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
}

static void* allocate(size_t bytes) {
  void* memory = malloc(bytes > 0 ? bytes : 1);
  if (memory == NULL) stop("out of memory");
  return memory;
}

/* Hands a failed status on to whoever runs the command. */
#define TRY(call)                        \
  do {                                   \
    OrtStatus* status_ = (call);         \
    if (status_ != NULL) return status_; \
  } while (false)

/* For calls that no script makes fail. */
static void must(OrtStatus* status) {
  if (status != NULL) stop("%s", ort->GetErrorMessage(status));
}

/* Labels. */

enum kind { kState, kSession, kModel, kTensor };

struct object {
  char* label;
  enum kind kind;
  void* handle;
};

static struct object* objects;
static size_t object_count;

static struct object* look_up(const char* label) {
  for (size_t i = 0; i < object_count; ++i)
    if (strcmp(objects[i].label, label) == 0) return &objects[i];
  return NULL;
}

static void release_handle(const struct object* object) {
  if (object->kind == kState) training->ReleaseCheckpointState(object->handle);
  if (object->kind == kSession) training->ReleaseTrainingSession(object->handle);
  if (object->kind == kModel) ort->ReleaseSession(object->handle);
  if (object->kind == kTensor) ort->ReleaseValue(object->handle);
}

static struct object* keep(const char* label, enum kind kind, void* handle) {
  struct object* object = look_up(label);
  if (object != NULL) {
    release_handle(object);
  } else {
    objects = realloc(objects, (object_count + 1) * sizeof *objects);
    if (objects == NULL) stop("out of memory");
    object = &objects[object_count++];
    object->label = strcpy(allocate(strlen(label) + 1), label);
  }
  object->kind = kind;
  object->handle = handle;
  return object;
}

static void drop(struct object* object) {
  release_handle(object);
  free(object->label);
  *object = objects[--object_count];
}

static struct object* find(const char* label, enum kind kind) {
  static const char* const names[] = {"state", "session", "model", "tensor"};
  struct object* object = look_up(label);
  if (object == NULL || object->kind != kind) stop("%s is no %s", label, names[kind]);
  return object;
}

static OrtCheckpointState* state_of(const char* label) { return find(label, kState)->handle; }
static OrtTrainingSession* session_of(const char* label) { return find(label, kSession)->handle; }
static OrtSession* model_of(const char* label) { return find(label, kModel)->handle; }
static OrtValue* tensor_of(const char* label) { return find(label, kTensor)->handle; }

/* Numbers and tensors as the script writes them. */

static int64_t read_integer(const char* text) {
  char* end = NULL;
  const long long value = strtoll(text, &end, 10);
  if (*text == '\0' || *end != '\0') stop("%s is not a whole number", text);
  return value;
}

static float read_number(const char* text) {
  char* end = NULL;
  float value = 0;
  if (strncmp(text, "bits:", 5) == 0) {
    const uint32_t bits = (uint32_t)strtoul(text + 5, &end, 16);
    memcpy(&value, &bits, sizeof value);
  } else {
    value = (float)strtod(text, &end);
  }
  if (*end != '\0') stop("%s is not a number", text);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static const struct type {
  const char* name;
  ONNXTensorElementDataType type;
  size_t bytes;
} kTypes[] = {
    {"float", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
    {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
    {"double", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
};
static const size_t kTypeCount = sizeof kTypes / sizeof kTypes[0];

static const struct type* type_named(const char* name) {
  for (size_t i = 0; i < kTypeCount; ++i)
    if (strcmp(kTypes[i].name, name) == 0) return &kTypes[i];
  stop("there is no type %s", name);
  return NULL;
}

struct shape {
  int64_t dims[kRank];
  size_t rank;
  size_t elements;
};

static struct shape read_shape(const char* text) {
  struct shape shape = {{0}, 0, 1};
  if (strcmp(text, "-") == 0) return shape;
  for (;;) {
    char* end = NULL;
    if (shape.rank == kRank) stop("%s has too many dimensions", text);
    const long long dim = strtoll(text, &end, 10);
    if (end == text || dim < 0 || (*end != 'x' && *end != '\0')) stop("%s is not a shape", text);
    shape.dims[shape.rank++] = dim;
    shape.elements *= (size_t)dim;
    if (*end == '\0') return shape;
    text = end + 1;
  }
}

static OrtValue* make_tensor(const struct type* type, const struct shape* shape, void** data) {
  OrtValue* value = NULL;
  must(ort->CreateTensorAsOrtValue(allocator, shape->dims, shape->rank, type->type, &value));
  must(ort->GetTensorMutableData(value, data));
  return value;
}

/* Writes type and dimensions, the first part of a line, and returns both. */
static const struct type* log_type(const char* what, const char* name, const OrtTensorTypeAndShapeInfo* info,
                                   struct shape* shape) {
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  must(ort->GetTensorElementType(info, &element));
  must(ort->GetDimensionsCount(info, &shape->rank));
  if (shape->rank > kRank) stop("%s has rank %zu", name, shape->rank);
  must(ort->GetDimensions(info, shape->dims, shape->rank));

  const struct type* type = NULL;
  for (size_t i = 0; i < kTypeCount; ++i)
    if (kTypes[i].type == element) type = &kTypes[i];
  if (type == NULL) stop("%s is of type %d", name, (int)element);

  write_log("%s%s%s %s ", what, *name != '\0' ? " " : "", name, type->name);
  for (size_t i = 0; i < shape->rank; ++i) write_log("%s%" PRId64, i > 0 ? "x" : "", shape->dims[i]);
  if (shape->rank == 0) write_log("-");
  return type;
}

static void log_tensor(const char* what, const char* name, OrtValue* value) {
  if (!logging) return;
  OrtTensorTypeAndShapeInfo* info = NULL;
  struct shape shape;
  const unsigned char* data = NULL;
  must(ort->GetTensorTypeAndShape(value, &info));
  const struct type* type = log_type(what, name, info, &shape);
  must(ort->GetTensorShapeElementCount(info, &shape.elements));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  must(ort->GetTensorMutableData(value, (void**)&data));

  if (shape.rank == 0 && type->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
    write_log(" %08" PRIx32 "\n", bits_of(*(const float*)(const void*)data));
    return;
  }
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < shape.elements * type->bytes; ++i) hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
  write_log(" %016" PRIx64 "\n", hash);
}

/* The bytes of a file, with a zero after them. */
static char* read_file(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) stop("cannot open %s", path);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  char* content = allocate(*bytes + 1);
  if (fread(content, 1, *bytes, file) != *bytes) stop("cannot read %s", path);
  fclose(file);
  content[*bytes] = '\0';
  return content;
}

/* Commands: each gets its arguments, and returns null or the status with which the library refused. */

static OrtStatus* command_tensor(int count, char** arguments) {
  (void)count;
  size_t bytes = 0;
  char* content = read_file(arguments[1], &bytes);
  char name[16], dims[128];
  int header = 0;
  if (sscanf(content, "%15s %127s%n", name, dims, &header) != 2 || content[header] != '\n')
    stop("%s is not a tensor file", arguments[1]);
  const struct type* type = type_named(name);
  const struct shape shape = read_shape(dims);
  if (bytes - (size_t)header - 1 != shape.elements * type->bytes) stop("%s has another size", arguments[1]);
  void* data = NULL;
  OrtValue* value = make_tensor(type, &shape, &data);
  memcpy(data, content + header + 1, shape.elements * type->bytes);
  free(content);
  keep(arguments[0], kTensor, value);
  return NULL;
}

static OrtStatus* command_zeros(int count, char** arguments) {
  (void)count;
  const struct type* type = type_named(arguments[1]);
  const struct shape shape = read_shape(arguments[2]);
  void* data = NULL;
  OrtValue* value = make_tensor(type, &shape, &data);
  memset(data, 0, shape.elements * type->bytes);
  keep(arguments[0], kTensor, value);
  return NULL;
}

static OrtStatus* command_show(int count, char** arguments) {
  (void)count;
  log_tensor("tensor", "", tensor_of(arguments[0]));
  return NULL;
}

typedef OrtStatus*(ORT_API_CALL* count_call)(const OrtTrainingSession*, size_t*);
typedef OrtStatus*(ORT_API_CALL* name_call)(const OrtTrainingSession*, size_t, OrtAllocator*, char**);

static OrtStatus* log_names(const char* what, const OrtTrainingSession* from, count_call count_of,
                            name_call name_of) {
  size_t count = 0;
  TRY(count_of(from, &count));
  write_log("%s", what);
  for (size_t i = 0; i < count; ++i) {
    char* name = NULL;
    TRY(name_of(from, i, allocator, &name));
    write_log(" %s", name);
    allocator->Free(allocator, name);
  }
  write_log("\n");
  return NULL;
}

static OrtStatus* log_outputs(const char* what, const OrtTrainingSession* from, name_call name_of,
                              size_t count, OrtValue* const* outputs) {
  for (size_t i = 0; i < count; ++i) {
    char* name = NULL;
    TRY(name_of(from, i, allocator, &name));
    log_tensor(what, name, outputs[i]);
    allocator->Free(allocator, name);
  }
  return NULL;
}

/* What a log line begins with, until the next call. */
static const char* text(const char* format, ...) {
  static char buffer[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  return buffer;
}

static void log_value(const char* what, OrtValue* value) { log_tensor(what, "", value); }
static void log_float(const char* what, float value) {
  write_log("%s %08" PRIx32 "\n", what, bits_of(value));
}
static void log_int64(const char* what, int64_t value) { write_log("%s %" PRId64 "\n", what, value); }
static void log_string(const char* what, const char* value) { write_log("%s %s\n", what, value); }

/* A path in the form that the library takes, valid until the fourth call after this one. */
static const ORTCHAR_T* path_of(const char* path) {
#ifdef _WIN32
  static wchar_t wide[4][1024];
  static size_t next;
  wchar_t* result = wide[next++ % 4];
  if (MultiByteToWideChar(CP_UTF8, 0, path, -1, result, 1024) == 0) stop("the path %s is too long", path);
  return result;
#else
  return path;
#endif
}

/* A path; none for `-`. */
static const ORTCHAR_T* path_or_none(const char* path) {
  return strcmp(path, "-") == 0 ? NULL : path_of(path);
}

struct tensors {
  OrtValue* values[kTokens];
  size_t length;
};

static struct tensors read_tensors(char** labels, int count) {
  struct tensors tensors = {{NULL}, (size_t)count};
  for (int i = 0; i < count; ++i) tensors.values[i] = tensor_of(labels[i]);
  return tensors;
}

static struct tensors tensors_from(int count, char** arguments, int at) {
  return read_tensors(arguments + at, count - at);
}

static int count_at(int count, char** arguments, int at) {
  const int64_t found = read_integer(arguments[at]);
  if (found < 0 || found >= count - at - 1) stop("there are no tensors for the outputs");
  return (int)found;
}

/* As many tensors as an argument says, which stand behind it. */
static struct tensors tensors_counted(int count, char** arguments, int at) {
  return read_tensors(arguments + at + 1, count_at(count, arguments, at));
}

/* The tensors behind counted ones. */
static struct tensors tensors_behind(int count, char** arguments, int at) {
  return tensors_from(count, arguments, at + count_at(count, arguments, at - 1));
}

/* Names, and tensors unless only names are given. */
struct pairs {
  const char* names[kTokens];
  OrtValue* values[kTokens];
  size_t length;
};

static struct pairs read_pairs(char** tokens, int count) {
  struct pairs pairs = {{NULL}, {NULL}, 0};
  if (count % 2 != 0) stop("there is no tensor for %s", tokens[count - 1]);
  for (int i = 0; i < count; i += 2) {
    pairs.names[pairs.length] = tokens[i];
    pairs.values[pairs.length++] = tensor_of(tokens[i + 1]);
  }
  return pairs;
}

static int count_of_pairs(int count, char** arguments, int at) {
  const int64_t found = read_integer(arguments[at]);
  if (found < 0 || 2 * found > count - at - 1) stop("there are not so many inputs");
  return (int)found;
}

/* As many pairs as an argument says, which stand behind it. */
static struct pairs pairs_counted(int count, char** arguments, int at) {
  return read_pairs(arguments + at + 1, 2 * count_of_pairs(count, arguments, at));
}

/* The pairs behind counted ones. */
static struct pairs pairs_behind(int count, char** arguments, int at) {
  const int begin = at + 2 * count_of_pairs(count, arguments, at - 1);
  return read_pairs(arguments + begin, count - begin);
}

/* The names behind counted pairs. */
static struct pairs names_behind(int count, char** arguments, int at) {
  struct pairs names = {{NULL}, {NULL}, 0};
  for (int i = at + 2 * count_of_pairs(count, arguments, at - 1); i < count; ++i)
    names.names[names.length++] = arguments[i];
  return names;
}

static bool flag(const char* text, const char* yes, const char* no) {
  if (strcmp(text, yes) != 0 && strcmp(text, no) != 0) stop("expected %s or %s, found %s", yes, no, text);
  return strcmp(text, yes) == 0;
}

/* Forward sessions. */

static OrtStatus* command_describe(int count, char** arguments) {
  (void)count;
  const OrtSession* of = model_of(arguments[0]);
  for (int outputs = 0; outputs < 2; ++outputs) {
    size_t values = 0;
    TRY(outputs ? ort->SessionGetOutputCount(of, &values) : ort->SessionGetInputCount(of, &values));
    for (size_t i = 0; i < values; ++i) {
      char* name = NULL;
      OrtTypeInfo* type = NULL;
      const OrtTensorTypeAndShapeInfo* info = NULL;
      struct shape shape;
      TRY(outputs ? ort->SessionGetOutputName(of, i, allocator, &name)
                  : ort->SessionGetInputName(of, i, allocator, &name));
      TRY(outputs ? ort->SessionGetOutputTypeInfo(of, i, &type) : ort->SessionGetInputTypeInfo(of, i, &type));
      TRY(ort->CastTypeInfoToTensorInfo(type, &info));
      log_type(outputs ? "output" : "input", name, info, &shape);
      write_log("\n");
      ort->ReleaseTypeInfo(type);
      allocator->Free(allocator, name);
    }
  }
  return NULL;
}

static OrtStatus* command_release(int count, char** arguments) {
  (void)count;
  struct object* object = look_up(arguments[0]);
  if (object == NULL) stop("%s names nothing", arguments[0]);
  drop(object);
  return NULL;
}

static OrtStatus* command_log(int count, char** arguments) {
  (void)count;
  logging = flag(arguments[0], "on", "off");
  return NULL;
}

static OrtStatus* command_resident(int count, char** arguments) {
  (void)count;
  (void)arguments;
  long kib = -1;
#ifdef _WIN32
  PROCESS_MEMORY_COUNTERS memory;
  if (!GetProcessMemoryInfo(GetCurrentProcess(), &memory, sizeof memory))
    stop("cannot read the size of the memory");
  kib = (long)(memory.WorkingSetSize / 1024);
#else
  FILE* file = fopen("/proc/self/status", "r");
  if (file == NULL) stop("cannot open /proc/self/status");
  char line[256];
  while (kib < 0 && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "VmRSS: %ld", &kib) != 1) kib = -1;
  fclose(file);
#endif
  write_log("resident %ld\n", kib);
  return NULL;
}

static int compare_times(const void* a, const void* b) {
  const int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
  return (x > y) - (x < y);
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static OrtStatus* command_measure(int count, char** arguments) {
  const int64_t steps = read_integer(arguments[0]);
  if (steps < 1) stop("expected 1 step or more");
  OrtTrainingSession* on = session_of(arguments[1]);
  const OrtValue* inputs[kTokens];
  OrtValue* outputs[kTokens] = {NULL}; /* made by the first step, written into by the others */
  const size_t inputs_len = (size_t)count - 2;
  for (size_t i = 0; i < inputs_len; ++i) inputs[i] = tensor_of(arguments[2 + i]);
  size_t outputs_len = 0;
  TRY(training->TrainingSessionGetTrainingModelOutputCount(on, &outputs_len));
  if (outputs_len > kTokens) stop("the model has %zu outputs", outputs_len);
  TRY(training->TrainStep(on, NULL, inputs_len, inputs, outputs_len, outputs));
  int64_t* times = allocate((size_t)steps * sizeof *times);
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t began = nanoseconds();
    OrtStatus* status = training->TrainStep(on, NULL, inputs_len, inputs, outputs_len, outputs);
    times[i] = nanoseconds() - began;
    TRY(status);
  }
  qsort(times, (size_t)steps, sizeof *times, compare_times);
  write_log("nanoseconds %" PRId64 "\n", times[(steps - 1) / 2]);
  free(times);
  for (size_t i = 0; i < outputs_len; ++i) ort->ReleaseValue(outputs[i]);
  return NULL;
}

#include "generated/c/commands.h"

static OrtStatus* run_command(int count, char** tokens) {
  for (size_t i = 0; i < sizeof kCommands / sizeof kCommands[0]; ++i) {
    const struct entry* entry = &kCommands[i];
    if (strcmp(entry->name, tokens[0]) != 0) continue;
    if (count - 1 < entry->fewest || count - 1 > entry->most) stop("wrong number of tokens");
    return entry->run(count - 1, tokens + 1);
  }
  stop("there is no such command");
  return NULL;
}

static void run_line(int count, char** tokens) {
  const bool expects_failure = strcmp(tokens[0], "fails") == 0;
  if (expects_failure && count < 3) stop("wrong number of tokens");
  OrtStatus* status = expects_failure ? run_command(count - 2, tokens + 2) : run_command(count, tokens);
  if (!expects_failure) {
    if (status != NULL) stop("error %d: %s", (int)ort->GetErrorCode(status), ort->GetErrorMessage(status));
    return;
  }
  const int64_t code = read_integer(tokens[1]);
  if (status == NULL) stop("expected an error of code %" PRId64 ", found none", code);
  if ((int64_t)ort->GetErrorCode(status) != code)
    stop("expected an error of code %" PRId64 ", found %d: %s", code, (int)ort->GetErrorCode(status),
         ort->GetErrorMessage(status));
  write_log("error %" PRId64 " %s\n", code, ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
}

/* Scripts. */

static char** lines;
static size_t line_count;

/* A copy of a token with `{}` and the folders filled in. */
static char* resolve(const char* token, int64_t number) {
  char text[4096];
  const char* folder = strncmp(token, "data:", 5) == 0  ? data_folder
                       : strncmp(token, "out:", 4) == 0 ? out_folder
                                                        : NULL;
  size_t used = 0;
  if (folder != NULL) {
    used = (size_t)snprintf(text, sizeof text, "%s/", folder);
    token = strchr(token, ':') + 1;
  }
  for (; *token != '\0'; ++token) {
    if (used + 32 > sizeof text) stop("a token is too long");
    if (token[0] == '{' && token[1] == '}') {
      used += (size_t)snprintf(text + used, 24, "%" PRId64, number);
      ++token;
    } else {
      text[used++] = *token;
    }
  }
  text[used] = '\0';
  return strcpy(allocate(used + 1), text);
}

/* The tokens of a line, to be freed with free_tokens; none for a line that means nothing. */
static int tokens_of(size_t at, int64_t number, char** tokens) {
  int count = 0;
  if (lines[at][0] == '#') return 0;
  char* copy = strcpy(allocate(strlen(lines[at]) + 1), lines[at]);
  for (char* token = strtok(copy, " "); token != NULL; token = strtok(NULL, " ")) {
    if (count == kTokens) stop("the line is too long");
    tokens[count++] = resolve(token, number);
  }
  free(copy);
  return count;
}

static void free_tokens(int count, char** tokens) {
  for (int i = 0; i < count; ++i) free(tokens[i]);
}

/* The `end` that belongs to the `repeat` at `start`. */
static size_t end_of(size_t start) {
  int depth = 0;
  for (size_t at = start; at < line_count; ++at) {
    const char* line = lines[at] + strspn(lines[at], " ");
    if (strncmp(line, "repeat ", 7) == 0) ++depth;
    if (strcmp(line, "end") == 0 && --depth == 0) return at;
  }
  stop("this repeat has no end");
  return 0;
}

static void run_lines(size_t begin, size_t end, int64_t number) {
  for (size_t at = begin; at < end; ++at) {
    char* tokens[kTokens];
    script_line = at + 1;
    command = lines[at];
    const int count = tokens_of(at, number, tokens);
    if (count > 0 && strcmp(tokens[0], "repeat") == 0) {
      if (count != 2 && count != 3) stop("wrong number of tokens");
      const size_t last = end_of(at);
      const int64_t rounds = read_integer(tokens[1]), first = count == 3 ? read_integer(tokens[2]) : 0;
      for (int64_t i = first; i < first + rounds; ++i) run_lines(at + 1, last, i);
      at = last;
    } else if (count > 0) {
      run_line(count, tokens);
    }
    free_tokens(count, tokens);
  }
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s SCRIPT DATA OUT\n", argv[0]);
    return 1;
  }
#ifdef _WIN32
  _setmode(_fileno(stdout), _O_BINARY); /* lines end in \n on every system */
#endif
  script_path = argv[1];
  data_folder = argv[2];
  out_folder = argv[3];
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  training = ort->GetTrainingApi(ORT_API_VERSION);
  extension = OrtrainGetApi(ORTRAIN_API_VERSION);
  must(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "runner", &env));
  must(ort->GetAllocatorWithDefaultOptions(&allocator));

  size_t bytes = 0;
  char* script = read_file(script_path, &bytes);
  for (size_t i = 0; i < bytes; ++i) line_count += script[i] == '\n';
  lines = allocate(line_count * sizeof *lines);
  char* line = script;
  for (size_t i = 0; i < line_count; ++i) {
    lines[i] = line;
    line = strchr(line, '\n');
    *line++ = '\0';
  }
  run_lines(0, line_count, 0);

  while (object_count > 0) drop(&objects[0]);
  free(objects);
  free(lines);
  free(script);
  ort->ReleaseEnv(env);
  return 0;
}
