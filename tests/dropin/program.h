// What the programs of this folder share: the library that is named first, and how they report.
#pragma once
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

static const OrtApi* ort;

static int code_of(OrtStatus* status) {
  const int code = status ? ort->GetErrorCode(status) : 0;
  if (status && getenv("SAY")) fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
  if (status) ort->ReleaseStatus(status);
  return code;
}
// The code of a call that may fail, which both libraries have to share.
#define CODE(call) printf("%s: code %d\n", #call, code_of(call))
#define OK(call)                                                                   \
  do {                                                                             \
    OrtStatus* status_ = call;                                                     \
    if (status_) {                                                                 \
      printf("line %d, %s: %s\n", __LINE__, #call, ort->GetErrorMessage(status_)); \
      exit(1);                                                                     \
    }                                                                              \
  } while (0)

// The table of the newest version that all libraries have on which the programs run, unless a program needs
// more.
#ifndef API_VERSION
#define API_VERSION 28
#endif
static void open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  const OrtApiBase* (*base)(void);
  *(void**)&base = dlsym(library, "OrtGetApiBase");
  setvbuf(stdout, NULL, _IONBF, 0);
  ort = base()->GetApi(API_VERSION);
}
