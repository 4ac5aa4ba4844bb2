// Opens the library, runs a model on two threads and closes the library, three times. Prints an element of
// each result. Arguments: the library, the model.
#include <dlfcn.h>
#include <unistd.h>

#include "product.h"

static void* required(void* found) {
  if (found) return found;
  fprintf(stderr, "%s\n", dlerror());
  exit(2);
}

static void print(float element) { printf("%g\n", element); }

static void run(const char* path, const char* model) {
  void* library = required(dlopen(path, RTLD_NOW | RTLD_LOCAL));
  const OrtApiBase* (*base)(void);
  *(void**)&base = required(dlsym(library, "OrtGetApiBase"));
  api = base()->GetApi(32);
  OrtEnv* env = NULL;
  OrtSessionOptions* options = NULL;
  ok(api->CreateEnv(3, "reload", &env));
  ok(api->CreateSessionOptions(&options));
  ok(api->SetIntraOpNumThreads(options, 2));
  run_product(env, options, model, print);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  dlclose(library);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  for (int time = 0; time < 3; ++time) {
    run(argv[1], argv[2]);
    usleep(50000);  // threads that the library leaves behind run on
  }
  return 0;
}
