// Processes that fork while other threads work.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "program/program.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

// What a child that runs `work` ends with; SIGALRM if it hangs.
template <typename F>
int status_of_child(F&& work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    work();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

// Compiles a convolution of images of this size.
void compile(int64_t size) {
  Graph graph;
  graph.inputs = {{"x", DType::kFloat, std::nullopt}, {"w", DType::kFloat, std::nullopt}};
  Node conv;
  conv.op_type = "Conv";
  conv.inputs = {"x", "w"};
  conv.outputs = {"y"};
  graph.nodes = {conv};
  graph.outputs = {{"y", DType::kFloat, std::nullopt}};
  const std::map<std::string, int64_t> opsets = {{"", 17}};
  ProgramRequest request;
  request.graph = &graph;
  request.opsets = &opsets;
  request.inputs = {"x", "w"};
  request.example_inputs = {Tensor(DType::kFloat, {1, 16, size, size}),
                            Tensor(DType::kFloat, {16, 16, 3, 3})};
  request.outputs = {"y"};
  request.arena = std::make_shared<Arena>();
  const Program program(request);
}

}  // namespace

TEST_CASE("a child can compile what another thread of its parent was compiling") {
  std::atomic<int64_t> size{8};
  std::atomic<bool> done{false};
  std::thread compiler([&] {
    for (; !done && size < 4000; ++size) compile(size);
  });
  int hanging = 0;
  for (int i = 0; i < 40 && hanging == 0; ++i) {
    const int64_t begun = size;
    hanging += status_of_child([&] {
                 for (int64_t s = begun; s <= size + 1; ++s) compile(s);
               }) != 0;
  }
  done = true;
  compiler.join();
  CHECK(hanging == 0);
}
