// Allocators, threads, background runs and times. Arguments: the library, a folder of models.
#define API_VERSION 30
#include "program.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator*, size_t);
  void (*Free)(OrtAllocator*, void*);
  const OrtMemoryInfo* (*Info)(const OrtAllocator*);
  void* (*Reserve)(OrtAllocator*, size_t);
  OrtStatus* (*GetStats)(const OrtAllocator*, OrtKeyValuePairs**);
  void* (*AllocOnStream)(OrtAllocator*, size_t, OrtSyncStream*);
};

static OrtEnv* env;
static const char* folder;

static OrtSession* open_model(const OrtSessionOptions* options) {
  char path[4096];
  snprintf(path, sizeof path, "%s/model.onnx", folder);
  OrtSession* session = NULL;
  printf("session: code %d\n", code_of(ort->CreateSession(env, path, options, &session)));
  return session;
}

// ---- allocators ----

static void print_info(const char* what, const OrtMemoryInfo* info) {
  const char* name = NULL;
  int id = 9, kind = 9, type = 9, device = 9;
  OK(ort->MemoryInfoGetName(info, &name));
  OK(ort->MemoryInfoGetId(info, &id));
  OK(ort->MemoryInfoGetMemType(info, (void*)&kind));
  OK(ort->MemoryInfoGetType(info, (void*)&type));
  ort->MemoryInfoGetDeviceType(info, (void*)&device);
  printf("%s: %s, id %d, memory type %d, allocator type %d, device %d, of the device %d, vendor %d\n", what,
         name, id, kind, type, device, (int)ort->MemoryInfoGetDeviceMemType(info),
         (int)ort->MemoryInfoGetVendorId(info));
}

static void print_allocator(const char* what, const OrtAllocator* allocator) {
  const OrtMemoryInfo* info = NULL;
  if (allocator) OK(ort->AllocatorGetInfo(allocator, &info));
  if (info)
    print_info(what, info);
  else
    printf("%s: none\n", what);
}

static int allocations;
static OrtMemoryInfo* own_info;
static void* own_alloc(OrtAllocator* allocator, size_t size) {
  return (void)allocator, ++allocations, malloc(size);
}
static void own_free(OrtAllocator* allocator, void* p) { (void)allocator, free(p); }
static const OrtMemoryInfo* tell_info(const OrtAllocator* allocator) { return (void)allocator, own_info; }

static void infos(void) {
  OrtMemoryInfo* info = NULL;
  OrtAllocator* allocator = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  print_allocator("default", allocator);
  for (int type = -1; type <= 2; ++type)
    for (int kind = -3; kind <= 1; ++kind) {
      char what[64];
      snprintf(what, sizeof what, "cpu %d %d", type, kind);
      info = NULL;
      const int code = code_of(ort->CreateCpuMemoryInfo(type, kind, &info));
      if (code) printf("%s: code %d\n", what, code);
      if (info) print_info(what, info);
      if (info) ort->ReleaseMemoryInfo(info);
    }
  const char* const names[] = {"Cpu", "cpu", "", "CUDA_CPU", "Other"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    info = NULL;
    printf("named '%s': code %d\n", names[i], code_of(ort->CreateMemoryInfo(names[i], 0, 1, 0, &info)));
    if (info) print_info("info", info);
    if (info) ort->ReleaseMemoryInfo(info);
  }
  OrtSession* session = open_model(NULL);
  for (int type = 0; type <= 1; ++type)
    for (int kind = -2; kind <= 0; ++kind) {
      OK(ort->CreateCpuMemoryInfo(type, kind, &info));
      allocator = NULL;
      printf("of the session: code %d\n", code_of(ort->CreateAllocator(session, info, &allocator)));
      print_allocator("allocator", allocator);
      if (allocator) ort->ReleaseAllocator(allocator);
      ort->ReleaseMemoryInfo(info);
    }
  OK(ort->CreateMemoryInfo("Cpu", 0, 7, 0, &info));
  allocator = NULL;
  printf("of another device: code %d\n", code_of(ort->CreateAllocator(session, info, &allocator)));
  ort->ReleaseMemoryInfo(info);
  ort->ReleaseSession(session);
}

static void shared(void) {
  OrtMemoryInfo *info = NULL, *arena = NULL;
  OrtAllocator* allocator = NULL;
  OK(ort->CreateCpuMemoryInfo(0, 0, &info));
  OK(ort->CreateCpuMemoryInfo(1, 0, &arena));
  CODE(ort->GetSharedAllocator(env, info, &allocator));
  print_allocator("shared", allocator);
  CODE(ort->GetSharedAllocator(env, arena, &allocator));
  print_allocator("shared arena", allocator);
  CODE(ort->UnregisterAllocator(env, info));
  CODE(ort->CreateAndRegisterAllocator(env, arena, NULL));
  CODE(ort->GetSharedAllocator(env, info, &allocator));
  print_allocator("created", allocator);
  CODE(ort->CreateAndRegisterAllocator(env, arena, NULL));
  CODE(ort->UnregisterAllocator(env, info));
  CODE(ort->GetSharedAllocator(env, info, &allocator));
  print_allocator("after", allocator);

  OK(ort->CreateMemoryInfo("Cpu", 0, 0, 0, &own_info));
  OrtAllocator own = {24, own_alloc, own_free, tell_info, own_alloc, NULL, NULL};
  CODE(ort->RegisterAllocator(env, &own));
  CODE(ort->GetSharedAllocator(env, info, &allocator));
  printf("is mine: %d\n", allocator == &own);
  print_allocator("registered", allocator);
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  OrtSession* session = open_model(options);
  allocator = NULL;
  CODE(ort->CreateAllocator(session, info, &allocator));
  allocations = 0;
  void* p = NULL;
  CODE(ort->AllocatorAlloc(allocator, 64, &p));
  printf("used mine: %d\n", allocations);
  if (p) OK(ort->AllocatorFree(allocator, p));
  ort->ReleaseAllocator(allocator);
  ort->ReleaseSession(session);
  CODE(ort->UnregisterAllocator(env, info));
  ort->ReleaseSessionOptions(options);
  const OrtEpDevice* const* devices = NULL;
  size_t count = 0;
  OK(ort->GetEpDevices(env, &devices, &count));
  allocator = NULL;
  CODE(ort->CreateSharedAllocator(env, devices[0], 0, 0, NULL, &allocator));
  print_allocator("of the device", allocator);
  CODE(ort->ReleaseSharedAllocator(env, devices[0], 0));

  ort->ReleaseMemoryInfo(own_info);
  own_info = NULL;
  const OrtMemoryInfo* told = NULL;
  CODE(ort->AllocatorGetInfo(&own, &told));
  ort->ReleaseMemoryInfo(arena);
  ort->ReleaseMemoryInfo(info);
}

static void own_memory(void) {
  const char* const names[] = {"Cpu", "Mine", "CpuArena", ""};
  const int64_t two = 2;
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    printf("memory '%s': code %d\n", names[i],
           code_of(ort->CreateMemoryInfo_V2(names[i], 0, 0, 0, 0, 0, 0, &own_info)));
    OrtAllocator own = {24, own_alloc, own_free, tell_info, own_alloc, NULL, NULL}, *found = NULL;
    print_allocator("allocator", &own);
    OrtValue* value = NULL;
    const OrtMemoryInfo* told = NULL;
    CODE(ort->CreateTensorAsOrtValue(&own, &two, 1, 1, &value));
    OK(ort->GetTensorMemoryInfo(value, &told));
    print_info("of its tensor", told);
    ort->ReleaseValue(value);
    void* bytes = own_alloc(&own, 8);
    CODE(ort->CreateTensorWithDataAndDeleterAsOrtValue(&own, bytes, 8, &two, 1, 1, &value));
    OK(ort->GetTensorMemoryInfo(value, &told));
    print_info("of a tensor that it frees", told);
    ort->ReleaseValue(value);
    CODE(ort->RegisterAllocator(env, &own));
    CODE(ort->GetSharedAllocator(env, own_info, &found));
    printf("is mine: %d\n", found == &own);
    CODE(ort->UnregisterAllocator(env, own_info));
    ort->ReleaseMemoryInfo(own_info);
  }
  own_info = NULL;
  for (int type = 0; type <= 1; ++type) {
    float numbers[2];
    OrtMemoryInfo* info = NULL;
    OrtValue* value = NULL;
    const OrtMemoryInfo* told = NULL;
    OK(ort->CreateCpuMemoryInfo(type, -type, &info));
    OK(ort->CreateTensorWithDataAsOrtValue(info, numbers, sizeof numbers, &two, 1, 1, &value));
    ort->ReleaseMemoryInfo(info);
    OK(ort->GetTensorMemoryInfo(value, &told));
    print_info("of a tensor over numbers", told);
    ort->ReleaseValue(value);
  }
}

// ---- threads that the program makes ----

typedef struct Thread {
  pthread_t id;
  void (*work)(void*);
  void* parameter;
} Thread;
static int created, joined, with_options;
static void* begin(void* thread) { return ((Thread*)thread)->work(((Thread*)thread)->parameter), NULL; }
static void* create_thread(void* options, void (*work)(void*), void* parameter) {
  Thread* thread = malloc(sizeof *thread);
  *thread = (Thread){.work = work, .parameter = parameter};
  ++created;
  if (options == &with_options) ++with_options;
  pthread_create(&thread->id, NULL, begin, thread);
  return thread;
}
static void join_thread(void* thread) {
  ++joined;
  pthread_join(((Thread*)thread)->id, NULL);
  free(thread);
}
static void* refuse_thread(void* options, void (*work)(void*), void* parameter) {
  return (void)options, (void)work, (void)parameter, NULL;
}

static void threads_of_session(int count, int has_create, int has_join, int has_options) {
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->SetIntraOpNumThreads(options, count));
  OK(ort->SetInterOpNumThreads(options, 1));
  if (has_create == 1) CODE(ort->SessionOptionsSetCustomCreateThreadFn(options, (void*)create_thread));
  if (has_create == 2) CODE(ort->SessionOptionsSetCustomCreateThreadFn(options, (void*)refuse_thread));
  if (has_join) CODE(ort->SessionOptionsSetCustomJoinThreadFn(options, (void*)join_thread));
  if (has_options) CODE(ort->SessionOptionsSetCustomThreadCreationOptions(options, &with_options));
  created = joined = with_options = 0;
  OrtSession* session = open_model(options);
  printf("%d threads: created %d, with options %d\n", count, created, with_options);
  ort->ReleaseSession(session);
  printf("joined %d\n", joined);
  ort->ReleaseSessionOptions(options);
}

static int tasks(void) {
  int count = 0;
  DIR* folder_of_tasks = opendir("/proc/self/task");
  for (struct dirent* entry; (entry = readdir(folder_of_tasks));) count += entry->d_name[0] != '.';
  closedir(folder_of_tasks);
  return count;
}

// Waits for that number of threads: the system still lists a thread for a moment after it was joined.
static int tasks_of(int expected) {
  for (int i = 0; i < 1000 && tasks() != expected; ++i) usleep(10000);
  return tasks();
}

// A run uses the threads of the program, and no others.
static void threads_at_work(void) {
  enum { kSide = 512 };
  static float numbers[kSide * kSide];
  OrtSessionOptions* options = NULL;
  OrtSession* session = NULL;
  OrtMemoryInfo* memory = NULL;
  OrtValue *x = NULL, *y = NULL;
  char path[4096];
  snprintf(path, sizeof path, "%s/square.onnx", folder);
  for (int i = 0; i < kSide * kSide; ++i) numbers[i] = (float)(i % 3);
  OK(ort->CreateSessionOptions(&options));
  OK(ort->SetIntraOpNumThreads(options, 3));
  OK(ort->SessionOptionsSetCustomCreateThreadFn(options, (void*)create_thread));
  OK(ort->SessionOptionsSetCustomJoinThreadFn(options, (void*)join_thread));
  const int before = tasks();
  OK(ort->CreateSession(env, path, options, &session));
  const int64_t shape[] = {kSide, kSide};
  OK(ort->CreateCpuMemoryInfo(1, 0, &memory));
  OK(ort->CreateTensorWithDataAsOrtValue(memory, numbers, sizeof numbers, shape, 2, 1, &x));
  for (int i = 0; i < 3; ++i) {
    OK(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue* const*)&x, 1, (const char*[]){"y"}, 1,
                &y));
    ort->ReleaseValue(y);
    y = NULL;
  }
  printf("threads at work: %d more\n", tasks() - before);
  ort->ReleaseSession(session);
  printf("threads after it: %d more\n", tasks_of(before) - before);
  ort->ReleaseValue(x);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseSessionOptions(options);
}

static void affinities(void) {
  char text[2100];
  const char* const some[] = {"1", "1;2", "1-2", "", "x", "1,2;", "0", "2;1;1", "2-1"};
  const size_t count = sizeof some / sizeof *some;
  for (size_t i = 0; i <= count; ++i) {
    OrtSessionOptions* options = NULL;
    OK(ort->CreateSessionOptions(&options));
    OK(ort->SetIntraOpNumThreads(options, 2));
    memset(text, '1', sizeof text);
    text[2099] = 0;
    const char* affinity = i < count ? some[i] : text;
    printf("affinity %.10s: code %d\n", affinity,
           code_of(ort->AddSessionConfigEntry(options, "session.intra_op_thread_affinities", affinity)));
    OrtSession* session = open_model(options);
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
  }
}

// How many threads of the process may run on the first processor only.
static int bound_to_first(void) {
  int count = 0;
  DIR* folder_of_tasks = opendir("/proc/self/task");
  for (struct dirent* entry; (entry = readdir(folder_of_tasks));) {
    cpu_set_t set;
    if (entry->d_name[0] == '.' || sched_getaffinity(atoi(entry->d_name), sizeof set, &set)) continue;
    count += CPU_COUNT(&set) == 1 && CPU_ISSET(0, &set);
  }
  closedir(folder_of_tasks);
  return count;
}

// Waits for that number: a thread binds itself when it begins, and is listed for a moment after it was
// joined.
static int bound_to_first_of(int expected) {
  for (int i = 0; i < 1000 && bound_to_first() != expected; ++i) usleep(10000);
  return bound_to_first();
}

static void bound_threads(void) {
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->SetIntraOpNumThreads(options, 3));
  OK(ort->SetInterOpNumThreads(options, 1));
  OK(ort->AddSessionConfigEntry(options, "session.intra_op_thread_affinities", "1;1-1"));
  OrtSession* session = open_model(options);
  printf("bound: %d\n", bound_to_first_of(2));
  ort->ReleaseSession(session);
  printf("bound after the session: %d\n", bound_to_first_of(0));
  ort->ReleaseSessionOptions(options);
}

// ---- threads that all sessions of an environment share ----

static void shared_threads(int has_create, int has_join, const char* affinity) {
  OrtThreadingOptions* threads = NULL;
  OrtSessionOptions* options = NULL;
  OrtEnv *own = env, *with_threads = NULL;
  OK(ort->CreateThreadingOptions(&threads));
  OK(ort->SetGlobalIntraOpNumThreads(threads, 3));
  OK(ort->SetGlobalInterOpNumThreads(threads, 1));
  if (has_create == 1) OK(ort->SetGlobalCustomCreateThreadFn(threads, (void*)create_thread));
  if (has_create == 2) OK(ort->SetGlobalCustomCreateThreadFn(threads, (void*)refuse_thread));
  if (has_join) OK(ort->SetGlobalCustomJoinThreadFn(threads, (void*)join_thread));
  OK(ort->SetGlobalCustomThreadCreationOptions(threads, &with_options));
  if (affinity) OK(ort->SetGlobalIntraOpThreadAffinity(threads, affinity));
  created = joined = with_options = 0;
  printf("shared threads: code %d\n",
         code_of(ort->CreateEnvWithGlobalThreadPools(4, "shared", threads, &with_threads)));
  printf("created %d, with options %d\n", created, with_options);
  if (with_threads) {
    env = with_threads;
    OK(ort->CreateSessionOptions(&options));
    OK(ort->DisablePerSessionThreads(options));
    OrtSession *first = open_model(options), *second = open_model(options);
    printf("created %d for two sessions, bound %d\n", created, bound_to_first_of(affinity ? 2 : 0));
    ort->ReleaseSession(first);
    ort->ReleaseSession(second);
    printf("joined %d\n", joined);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(with_threads);
    printf("joined %d\n", joined);
    env = own;
  }
  ort->ReleaseThreadingOptions(threads);
}

static void long_affinities(void) {
  static char text[8192];
  const size_t lengths[] = {1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191};
  for (size_t i = 0; i < 10; ++i) {
    memset(text, 0, sizeof text);
    for (size_t k = 0; k < lengths[i]; ++k) text[k] = k % 2 ? ',' : '1';
    OrtThreadingOptions* shared = NULL;
    OrtSessionOptions* options = NULL;
    OK(ort->CreateThreadingOptions(&shared));
    OK(ort->CreateSessionOptions(&options));
    printf("length %zu: shared %d, ", lengths[i], code_of(ort->SetGlobalIntraOpThreadAffinity(shared, text)));
    printf("session %d\n",
           code_of(ort->AddSessionConfigEntry(options, "session.intra_op_thread_affinities", text)));
    ort->ReleaseSessionOptions(options);
    ort->ReleaseThreadingOptions(shared);
  }
}

// ---- runs in the background ----

static atomic_int done;
static char said[200];
static void take(void* data, OrtValue** outputs, size_t count, OrtStatus* status) {
  snprintf(said, sizeof said, "callback: data %d, %zu outputs, output %d, code %d\n", *(int*)data, count,
           outputs[0] != NULL, code_of(status));
  done = 1;
}
// Prints what the callback said, whether it comes before the end of the call or after it.
static void await_callback(int threads) {
  for (int i = 0; i < 1000 && !done && threads != 1; ++i) usleep(10000);
  printf("done %d, %s\n", done, said);
  done = 0;
  said[0] = 0;
}

static void background(int threads) {
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->SetIntraOpNumThreads(options, threads));
  OrtSession* session = open_model(options);
  const float numbers[] = {1, 2};
  const int64_t two = 2;
  OrtMemoryInfo* memory = NULL;
  OrtValue *x = NULL, *out[1] = {NULL};
  OK(ort->CreateCpuMemoryInfo(1, 0, &memory));
  OK(ort->CreateTensorWithDataAsOrtValue(memory, (void*)numbers, sizeof numbers, &two, 1, 1, &x));
  const char *in_names[] = {"x"}, *out_names[] = {"y"}, *wrong[] = {"nothing"};
  int data = 42;
  printf("background with %d threads\n", threads);
  CODE(ort->RunAsync(session, NULL, in_names, (const OrtValue* const*)&x, 1, out_names, 1, out, (void*)take,
                     &data));
  await_callback(threads);
  if (out[0]) ort->ReleaseValue(out[0]);
  out[0] = NULL;
  CODE(ort->RunAsync(session, NULL, wrong, (const OrtValue* const*)&x, 1, out_names, 1, out, (void*)take,
                     &data));
  await_callback(threads);
  CODE(ort->RunAsync(session, NULL, in_names, (const OrtValue* const*)&x, 1, wrong, 1, out, (void*)take,
                     &data));
  await_callback(threads);
  if (out[0]) ort->ReleaseValue(out[0]);
  ort->ReleaseValue(x);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
}

// ---- times, and canceling ----

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void profiling(void) {
  for (int profiles = 0; profiles < 2; ++profiles) {
    OrtSessionOptions* options = NULL;
    OK(ort->CreateSessionOptions(&options));
    char prefix[4096];
    snprintf(prefix, sizeof prefix, "%s/profile", folder);
    if (profiles) OK(ort->EnableProfiling(options, prefix));
    const uint64_t before = now();
    OrtSession* session = open_model(options);
    const uint64_t after = now();
    uint64_t start = 1;
    OK(ort->SessionGetProfilingStartTimeNs(session, &start));
    printf("start: %s\n", start == 0       ? "0"
                          : start < before ? "before"
                          : start <= after ? "between"
                                           : "after");
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
  }
}

static void cancel(void) {
  OrtSessionOptions* options = NULL;
  OrtSession* session = NULL;
  char path[4096];
  snprintf(path, sizeof path, "%s/model.onnx", folder);
  OK(ort->CreateSessionOptions(&options));
  CODE(ort->SessionOptionsSetLoadCancellationFlag(options, true));
  OrtStatus* status = ort->CreateSession(env, path, options, &session);
  printf("canceled: code %d, %s\n", status ? (int)ort->GetErrorCode(status) : 0,
         status && strstr(ort->GetErrorMessage(status), "due to user request") ? "said" : "not said");
  if (status && getenv("SAY")) fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
  if (status) ort->ReleaseStatus(status);
  CODE(ort->SessionOptionsSetLoadCancellationFlag(options, false));
  CODE(ort->CreateSession(env, path, options, &session));
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  open_library(arguments[1]);
  folder = arguments[2];
  OK(ort->CreateEnv(4, "odd", &env));
  threads_at_work();
  infos();
  shared();
  own_memory();
  threads_of_session(1, 1, 1, 0);
  threads_of_session(2, 1, 1, 0);
  threads_of_session(4, 1, 1, 1);
  threads_of_session(2, 1, 0, 0);
  threads_of_session(2, 0, 1, 0);
  threads_of_session(2, 2, 1, 0);
  affinities();
  bound_threads();
  long_affinities();
  background(1);
  background(2);
  profiling();
  cancel();
  ort->ReleaseEnv(env);  // there is one environment, and the first call decides on its threads
  env = NULL;
  shared_threads(1, 1, NULL);
  shared_threads(1, 0, NULL);
  shared_threads(2, 1, NULL);
  shared_threads(0, 0, "1;1");
  shared_threads(0, 0, "1");
  return 0;
}
