// Background: a thread that does pieces of work one after another.
#pragma once

#include <functional>
#include <memory>

namespace ortrain {

class Background {
 public:
  // A piece of work, which must not throw. It is called once. `abandoned` is true if its
  // turn will never come, because the Background is being destroyed.
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
