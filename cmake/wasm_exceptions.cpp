// What exceptions in WebAssembly need beside the C++ library of LLVM.
#include <stdbool.h>
#include <threads.h>

#include "config.h"
#include "unwind.h"

extern "C" {
#include "Unwind-wasm.c"

int __cxa_atexit(void (*)(void*), void*, void*);

// The end of the program destroys thread-local objects, because there is only one thread.
int __cxa_thread_atexit(void (*call)(void*), void* object, void* module) {
  return __cxa_atexit(call, object, module);
}
}

// The tag of C++ exceptions: the compiler declares it, but no source of LLVM defines it.
asm(".globl __cpp_exception\n.tagtype __cpp_exception i32\n__cpp_exception:\n");
