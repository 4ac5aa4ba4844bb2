// Runs a model in an environment with settings for shared threads, and prints how many threads the process
// then has. Arguments: the model, the threads of the environment, those of the session, and whether the
// session shares.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

static const OrtApi* api;

static void ok(OrtStatus* status) {
  if (!status) return;
  printf("%s\n", api->GetErrorMessage(status));
  exit(1);
}

static int threads_of_process(void) {
  char line[256];
  int count = 0;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &count);
  if (file) fclose(file);
  return count;
}

int main(int argc, char** argv) {
  enum { kSide = 512 };
  static float x[kSide * kSide];
  if (argc != 5) return 2;
  api = OrtGetApiBase()->GetApi(32);
  OrtThreadingOptions* shared = NULL;
  OrtEnv* env = NULL;
  OrtSessionOptions* options = NULL;
  OrtSession* session = NULL;
  OrtMemoryInfo* memory = NULL;
  OrtValue *input = NULL, *output = NULL;
  ok(api->CreateThreadingOptions(&shared));
  ok(api->SetGlobalIntraOpNumThreads(shared, atoi(argv[2])));
  ok(api->CreateEnvWithGlobalThreadPools(3, "threads", shared, &env));
  api->ReleaseThreadingOptions(shared);
  ok(api->CreateSessionOptions(&options));
  ok(api->SetIntraOpNumThreads(options, atoi(argv[3])));
  if (strcmp(argv[4], "shares") == 0) ok(api->DisablePerSessionThreads(options));
  ok(api->CreateSession(env, argv[1], options, &session));
  ok(api->CreateCpuMemoryInfo(1, 0, &memory));
  ok(api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){kSide, kSide}, 2, 1, &input));
  const char *input_names[] = {"x"}, *output_names[] = {"y"};
  ok(api->Run(session, NULL, input_names, (const OrtValue* const*)&input, 1, output_names, 1, &output));
  printf("%d\n", threads_of_process());
  api->ReleaseValue(input);
  api->ReleaseValue(output);
  api->ReleaseMemoryInfo(memory);
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  return 0;
}
