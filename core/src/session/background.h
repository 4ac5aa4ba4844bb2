// Background: a thread that does pieces of work one after another.
#pragma once

#include <functional>
#include <memory>

namespace ortrain {

class Background {
 public:
  // A piece of work. It must not throw, and is told whether it was abandoned instead of being run.
  using Work = std::function<void(bool abandoned)>;

  Background();
  // Waits until everything is done. If a piece of work destroys its own Background, those after it are
  // abandoned, because no thread could wait for them.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // The thread is created by the first piece of work, so that all of them use one pool of threads.
  void add(Work work);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ortrain
