// Windows destroys the thread_local variables of a thread under the lock of the loader, which other threads
// need before they can end.
#include <atomic>
#include <thread>
#include <vector>

#include "../core/catch.h"
#include "runtime/thread_pool.h"

using namespace ortrain;

TEST_CASE("threads that computed with several threads end") {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      const WaitingScope offered(Waiting::kSleep);
      std::atomic<bool> begun{false};
      regions::run(
          [](void* data, int part, int) {
            auto& begun = *static_cast<std::atomic<bool>*>(data);
            if (part == 1) begun = true;
            while (!begun) std::this_thread::yield();  // so that the second part gets a thread
          },
          &begun, 2);
    });
  for (std::thread& thread : threads) thread.join();
}
