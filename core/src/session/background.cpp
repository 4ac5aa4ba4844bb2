#include "session/background.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace ortrain {

// Shared with the thread, which may outlive the Background by the rest of the piece of work that destroyed
// it.
struct Background::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Work> queue;
  bool stopping = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      Work work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      work(false);
      work = nullptr;  // what it holds is released before the next wait
      lock.lock();
    }
  }
};

Background::Background() : state_(std::make_shared<State>()) {}

Background::~Background() {
  State& s = *state_;
  std::deque<Work> abandoned;
  bool own_thread = false;
  {
    const std::lock_guard lock(s.mutex);
    s.stopping = true;
    own_thread = s.thread.get_id() == std::this_thread::get_id();
    if (own_thread) abandoned.swap(s.queue);
  }
  s.changed.notify_all();
  for (Work& work : abandoned) work(true);
  if (own_thread)
    s.thread.detach();
  else if (s.thread.joinable())
    s.thread.join();
}

void Background::add(Work work) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.queue.push_back(std::move(work));
    if (!s.thread.joinable()) s.thread = std::thread([state = state_] { state->run(); });
  }
  s.changed.notify_one();
}

}  // namespace ortrain
