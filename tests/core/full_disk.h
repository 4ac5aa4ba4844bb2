// Writing as on a disk that is full; POSIX only.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include "catch.h"

namespace ortrain::test {

// While it exists, no file can grow beyond `bytes`: writing fails as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    before_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, before_handler_);
  }

 private:
  rlimit before_{};
  void (*before_handler_)(int) = nullptr;
};

}  // namespace ortrain::test
