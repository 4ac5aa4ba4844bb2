// Runs a model in an environment with settings for shared threads, and prints how many threads the process
// then has. Arguments: the model, the threads of the environment, those of the session, and whether the
// session shares.
#include <string.h>

#include "product.h"

static void print_threads_of_process(float element) {
  char line[256];
  int count = 0;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &count);
  if (file) fclose(file);
  (void)element;
  printf("%d\n", count);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  api = OrtGetApiBase()->GetApi(32);
  OrtThreadingOptions* shared = NULL;
  OrtEnv* env = NULL;
  OrtSessionOptions* options = NULL;
  ok(api->CreateThreadingOptions(&shared));
  ok(api->SetGlobalIntraOpNumThreads(shared, atoi(argv[2])));
  ok(api->CreateEnvWithGlobalThreadPools(3, "threads", shared, &env));
  api->ReleaseThreadingOptions(shared);
  ok(api->CreateSessionOptions(&options));
  ok(api->SetIntraOpNumThreads(options, atoi(argv[3])));
  if (strcmp(argv[4], "shares") == 0) ok(api->DisablePerSessionThreads(options));
  run_product(env, options, argv[1], print_threads_of_process);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  return 0;
}
