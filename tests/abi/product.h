// Runs a model that squares a matrix of ones, y = x x, with 512 rows and columns.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "layout.h"

static const OrtApi* api;

static void ok(OrtStatus* status) {
  if (!status) return;
  printf("%s\n", api->GetErrorMessage(status));
  exit(1);
}

// Calls `with_result` with an element of y while the session is open.
static void run_product(OrtEnv* env, const OrtSessionOptions* options, const char* model,
                        void (*with_result)(float)) {
  enum { kSide = 512 };
  static float x[kSide * kSide];
  OrtSession* session = NULL;
  OrtMemoryInfo* memory = NULL;
  OrtValue *input = NULL, *output = NULL;
  float* y = NULL;
  for (int i = 0; i < kSide * kSide; ++i) x[i] = 1;
  ok(api->CreateSession(env, model, options, &session));
  ok(api->CreateCpuMemoryInfo(1, 0, &memory));
  ok(api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){kSide, kSide}, 2, 1, &input));
  const char *input_names[] = {"x"}, *output_names[] = {"y"};
  ok(api->Run(session, NULL, input_names, (const OrtValue* const*)&input, 1, output_names, 1, &output));
  ok(api->GetTensorMutableData(output, (void**)&y));
  with_result(y[kSide * kSide - 1]);
  api->ReleaseValue(input);
  api->ReleaseValue(output);
  api->ReleaseMemoryInfo(memory);
  api->ReleaseSession(session);
}
