// Compiled for speed: each parallel loop waits for it (CMakeLists.txt).
#include "runtime/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/denormals.h"
#include "runtime/division.h"
#include "runtime/error.h"
#include "runtime/given_threads.h"
#include "runtime/memory.h"
#include "runtime/system.h"

namespace ortrain {
namespace {

using Word = std::atomic<uint32_t>;

void relax() {
#if defined(__SSE2__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int64_t nanoseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}
int64_t now() { return nanoseconds(Clock::now().time_since_epoch()); }

// Regions follow each other within tens of microseconds, and waking a thread that sleeps takes longer than
// many of them. So threads spin for a while before they sleep.
constexpr int64_t kSpin = nanoseconds(300us);

// How often another program takes the processor of a thread. A spinning thread offers its processor to others
// now and then, and notices when it gets the processor back late. If these interruptions take more than a
// fifth of the time, the thread stops spinning for a pause: it would keep other threads from work, perhaps
// the very thread that it waits for. Each further check with the same result doubles the pause.
class Interruptions {
 public:
  static constexpr int64_t kLate = nanoseconds(200us);

  bool frequent(int64_t time) const { return time < until_.load(std::memory_order_relaxed); }

  // Called by the thread itself, which got its processor back at `time`.
  void note(int64_t time, int64_t lost) {
    constexpr int64_t kShortest = nanoseconds(2ms), kLongest = nanoseconds(256ms);
    const int64_t had = time - lost - std::max(last_, until_.load(std::memory_order_relaxed));
    last_ = time;
    length_ = had > 4 * lost ? 0 : std::clamp(2 * length_, kShortest, kLongest);
    until_.store(time + length_, std::memory_order_relaxed);
  }

 private:
  int64_t last_ = 0, length_ = 0;
  std::atomic<int64_t> until_{0};
};

// Waits for a moment, or longer if that is worth it. Returns whether `ready()` is true; if not, the caller
// should sleep.
template <typename Ready>
bool spin(Waiting waiting, Interruptions& interruptions, const Ready& ready) {
  constexpr int kMoment = 64, kTurn = 32, kTurnsToYield = 16;
  for (int i = 0; i < kMoment; ++i) {
    if (ready()) return true;
    relax();
  }
  if (waiting == Waiting::kSleep) return false;
  const bool adaptive = waiting == Waiting::kAdaptive;
  const int64_t begun = now();
  if (adaptive && interruptions.frequent(begun)) return false;
  int64_t last = begun;
  for (int turn = 1;; ++turn) {
    for (int i = 0; i < kTurn; ++i) {
      if (ready()) return true;
      relax();
    }
    if (!adaptive) continue;
    if (turn % kTurnsToYield == 0) std::this_thread::yield();
    const int64_t time = now();
    if (time - last > Interruptions::kLate) {
      interruptions.note(time, time - last);
      return ready();
    }
    if (time - begun > kSpin) return ready();
    last = time;
  }
}

int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  const long number = text ? std::strtol(text, nullptr, 10) : 0;
  return number > 0 ? static_cast<int>(std::min<long>(number, INT32_MAX)) : otherwise;
}

// The environment variables of OpenMP that users know.
struct Settings {
  int most = std::min(system::most_threads(), number_from("OMP_THREAD_LIMIT", INT32_MAX));
  int threads = std::min(most, number_from("OMP_NUM_THREADS", system::processors()));
  Waiting waiting = policy();
  bool fixed_waiting = waiting != Waiting::kAdaptive;

  static Waiting policy() {
    const char* text = std::getenv("OMP_WAIT_POLICY");
    std::string name = text ? text : "";
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (name == "active") return Waiting::kSpin;
    return name == "passive" ? Waiting::kSleep : Waiting::kAdaptive;
  }
};

const Settings& settings() {
  static const Settings read;
  return read;
}

// The state of a worker thread, which the thread and its callers write: it spins while it waits, sleeps, has
// been offered its part, works, works while the caller sleeps, or must end.
enum State : uint32_t { kIdle, kAsleep, kOffered, kRunning, kAwaited, kStop };

// Memory that is kept, and grows when more is wanted.
class KeptMemory {
 public:
  void* at_least(size_t bytes) {
    if (bytes > size_) {
      size_ = 0;
      data_.reset();
      data_ = allocate(bytes);
      size_ = bytes;
    }
    return data_.get();
  }

 private:
  std::shared_ptr<std::byte> data_;
  size_t size_ = 0;
};

constexpr size_t kLine = 128;  // two cache lines, which processors fetch together

class Pool {
 public:
  // Without functions, its threads are those of the C++ library.
  explicit Pool(ThreadFunctions functions = {}) : functions_(std::move(functions)) {}
  ~Pool();  // waits until the workers have ended
  // Tells the workers to end. The last one deletes the pool.
  void abandon();
  // Makes threads for regions of `parts` parts, or as many of them as the system allows.
  void grow(int parts);
  // Offers the parts from 1 on to the workers. Returns in how many parts the work is done.
  int start(regions::Work work, void* data, int parts, int most_pieces, Waiting waiting);
  // Does the pieces of this part, then those of the other parts that no thread has begun.
  void work_from(int part) noexcept;
  // Waits for the workers that have begun.
  void finish() noexcept;
  // Throws the exception that a piece has thrown.
  void raise();
  void rest() { resting_.store(true, std::memory_order_relaxed); }
  KeptMemory& memory_of(int part) { return workers_[static_cast<size_t>(part - 1)]->memory; }

 private:
  // What a thread does in a region.
  struct alignas(kLine) Share {
    std::atomic<int> begun{0};  // pieces of its part, by any thread
    int taken = 0;              // pieces of other parts, by this thread
    int64_t ended = 0;          // when it found no more to do
  };

  struct alignas(kLine) Worker {
    Word state{kIdle};
    std::atomic<bool> started{false};
    bool offered = false;  // in this region
    KeptMemory memory;     // of its part, whoever does that
    Share share;
    Interruptions interruptions;
    Pool* pool = nullptr;
    int part = 0;
    std::thread thread;
    const void* handle = nullptr;  // of a thread that the program's function made

    bool has_thread() const { return handle != nullptr || thread.joinable(); }
  };

  void run(Worker& me, int part);
  void wait_for_work(Worker& me);
  bool is_available(const Worker& worker) const;
  void do_piece(int piece) noexcept;
  void await(Worker& of);
  void learn() noexcept;
  Share& share(int part) { return part == 0 ? caller_ : workers_[static_cast<size_t>(part - 1)]->share; }
  void stop(Worker& worker);
  void leave();

  const ThreadFunctions functions_;
  std::atomic<int> users_{1};           // the owner, and the workers that have a thread of the C++ library
  std::atomic<bool> in_region_{false};  // of some thread, if functions made the workers
  std::vector<std::unique_ptr<Worker>> workers_;  // of part i + 1
  // The region. Written by the caller while no worker has a part.
  regions::Work work_ = nullptr;
  void* data_ = nullptr;
  int parts_ = 1, pieces_ = 1;  // `pieces_` in each part
  bool learns_ = false;         // how evenly the threads work
  int64_t begun_ = 0;
  FloatMode mode_ = FloatMode::current();
  std::atomic<Waiting> waiting_{Waiting::kAdaptive};
  std::atomic<bool> resting_{false};  // the workers need not expect another region soon

  std::mutex failing_;          // for the two below
  std::exception_ptr failure_;  // of the first piece that failed, by number
  int failed_piece_ = 0;

  Division division_;
  Share caller_;
};

// Where a thread is.
struct Place {
  int part = 0;
  bool inside = false;  // of a region
  int wanted = 0;       // threads; 0: as in the settings
  int pieces = 0;       // of each part; 0: as the threads have worked
  Waiting waiting = Waiting::kAdaptive;
  Pool* pool = nullptr;   // of the region
  Pool* given = nullptr;  // instead of its own, for its regions
  Interruptions own;
  Interruptions* of_worker = nullptr;  // instead of its own, if the thread is one

  Interruptions& interruptions() { return of_worker ? *of_worker : own; }
};
constinit thread_local Place here;

// While it exists, the calling thread does part 0 of a region.
class InRegion {
 public:
  explicit InRegion(Pool& pool) {
    here.pool = &pool;
    here.part = 0;
    here.inside = true;
  }
  ~InRegion() {
    here.part = 0;
    here.inside = false;
  }
  InRegion(const InRegion&) = delete;
  InRegion& operator=(const InRegion&) = delete;
};

struct Owner {
  Pool* pool = nullptr;
  ~Owner() {
    // A program may end inside of a region; the threads are then in their parts.
    if (pool && !here.inside) {
      if (system::locks_when_threads_end())
        pool->abandon();
      else
        delete pool;
    }
    pool = nullptr;
  }
};
thread_local Owner own;

void Pool::stop(Worker& worker) {
  if (worker.state.exchange(kStop) == kAsleep) system::wake(worker.state);
}

Pool::~Pool() {
  for (const auto& worker : workers_) {
    stop(*worker);
    if (worker->handle != nullptr)
      functions_.join(worker->handle);
    else if (worker->thread.joinable())
      worker->thread.join();
  }
}

void Pool::abandon() {
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.detach();
    stop(*worker);
  }
  leave();
}

void Pool::leave() {
  if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

// glibc ends the process if it finds no memory for the variables of a thread when they are first used. So a
// new thread uses them at once, its own and those that exceptions have, and only after this much was free.
constexpr size_t kFirstUse = 64 << 10;

void use_exceptions() {
  try {
    throw 0;
  } catch (int) {
  }
}

void Pool::grow(int parts) {
  while (workers_.size() + 1 < static_cast<size_t>(parts)) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.pool = this;
    worker.part = static_cast<int>(workers_.size());
    const auto begin = [](void* data) {
      auto* me = static_cast<Worker*>(data);
      me->pool->run(*me, me->part);
    };
    try {
      if (functions_.create) {
        worker.handle = functions_.create(begin, &worker);
        require(worker.handle != nullptr, ErrorCode::kFail,
                "the program's function created no thread for part ", worker.part, " of ", parts,
                ", expected a handle that is not null");
      } else {
        ::operator delete(::operator new(kFirstUse));
        worker.thread = std::thread([&worker, begin] {
          Pool* const pool = worker.pool;
          begin(&worker);
          pool->leave();
        });
        users_.fetch_add(1, std::memory_order_relaxed);
        while (!worker.started.load(std::memory_order_acquire)) std::this_thread::yield();
      }
    } catch (const std::system_error&) {
      // The system has a limit, or no memory for a stack: the caller does the parts of this thread.
    } catch (const std::bad_alloc&) {  // as above
    } catch (...) {
      workers_.pop_back();
      throw;
    }
  }
}

void Pool::wait_for_work(Worker& me) {
  const auto called = [&] {
    const uint32_t state = me.state.load(std::memory_order_relaxed);
    return state == kOffered || state == kStop || resting_.load(std::memory_order_relaxed);
  };
  spin(waiting_.load(std::memory_order_relaxed), me.interruptions, called);
  uint32_t state = kIdle;
  if (me.state.compare_exchange_strong(state, kAsleep)) system::sleep_while(me.state, kAsleep);
}

void Pool::run(Worker& me, int part) {
  here.part = part;
  use_exceptions();
  me.started.store(true, std::memory_order_release);
  here.inside = true;
  here.pool = this;
  here.of_worker = &me.interruptions;
  for (;;) {
    uint32_t state = kOffered;
    if (me.state.compare_exchange_strong(state, kRunning)) {
      mode_.set();
      work_from(part);
      if (me.state.exchange(kIdle) == kAwaited) system::wake(me.state);
    } else if (state == kStop) {
      return;
    }
    if (me.state.load(std::memory_order_relaxed) == kIdle) wait_for_work(me);
  }
}

bool Pool::is_available(const Worker& worker) const {
  return worker.has_thread() && (worker.state.load(std::memory_order_relaxed) != kAsleep ||
                                 waiting_.load(std::memory_order_relaxed) != Waiting::kAdaptive ||
                                 !worker.interruptions.frequent(now()));
}

int Pool::start(regions::Work work, void* data, int parts, int most_pieces, Waiting waiting) {
  if (functions_.create) {
    // The workers exist already. Runs of several threads may share them; a run that comes second works alone.
    parts = std::min(parts, static_cast<int>(workers_.size()) + 1);
    if (parts == 1 || in_region_.exchange(true, std::memory_order_acquire)) return 1;
  } else {
    grow(parts);
  }
  work_ = work;
  data_ = data;
  parts_ = parts;
  mode_ = FloatMode::current();
  waiting_.store(waiting, std::memory_order_relaxed);
  resting_.store(false, std::memory_order_relaxed);
  caller_.begun.store(1, std::memory_order_relaxed);  // the first piece, which the caller does first
  bool any = false;
  for (int part = 1; part < parts; ++part) {
    Worker& worker = *workers_[static_cast<size_t>(part - 1)];
    worker.share.begun.store(0, std::memory_order_relaxed);
    worker.offered = is_available(worker);
    any |= worker.offered;
  }
  learns_ = any && most_pieces > 1 && here.pieces == 0;
  if (here.pieces > 0)
    pieces_ = std::clamp(most_pieces, 1, here.pieces);
  else
    pieces_ = learns_ ? division_.pieces(most_pieces) : 1;
  if (learns_) begun_ = now();
  for (int part = 1; part < parts; ++part) {
    Worker& worker = *workers_[static_cast<size_t>(part - 1)];
    if (worker.offered && worker.state.exchange(kOffered) == kAsleep) system::wake(worker.state);
  }
  return parts;
}

void Pool::await(Worker& of) {
  const auto done = [&] { return of.state.load(std::memory_order_acquire) != kRunning; };
  if (done() || spin(waiting_.load(std::memory_order_relaxed), here.interruptions(), done)) return;
  uint32_t state = kRunning;
  if (of.state.compare_exchange_strong(state, kAwaited)) system::sleep_while(of.state, kAwaited);
}

void Pool::do_piece(int piece) noexcept {
  try {
    work_(data_, here.part, piece, parts_ * pieces_);
  } catch (...) {
    const std::lock_guard lock(failing_);
    if (failure_ && failed_piece_ <= piece) return;
    failure_ = std::current_exception();
    failed_piece_ = piece;
  }
}

void Pool::work_from(int mine) noexcept {
  int taken = 0;
  if (mine == 0) do_piece(0);
  for (int i = 0; i < parts_; ++i) {
    const int part = (mine + i) % parts_;
    std::atomic<int>& begun = share(part).begun;
    // A whole part has its memory, whichever thread does it. Pieces have the memory of the thread.
    here.part = pieces_ == 1 ? part : mine;
    while (begun.load(std::memory_order_relaxed) < pieces_) {
      const int piece = begun.fetch_add(1, std::memory_order_relaxed);
      if (piece >= pieces_) break;
      do_piece(part * pieces_ + piece);
      taken += part != mine;
    }
  }
  here.part = mine;
  share(mine).taken = taken;
  if (learns_) share(mine).ended = now();
}

// Tells the division how evenly the threads have worked.
void Pool::learn() noexcept {
  int threads = 1, taken = caller_.taken;
  int64_t last = caller_.ended, sum = caller_.ended - begun_;
  for (int part = 1; part < parts_; ++part)
    if (const Worker& worker = *workers_[static_cast<size_t>(part - 1)]; worker.offered) {
      ++threads;
      taken += worker.share.taken;
      sum += worker.share.ended - begun_;
      last = std::max(last, worker.share.ended);
    }
  const double all = static_cast<double>(threads) * static_cast<double>(last - begun_);
  if (pieces_ > 1)
    division_.note_taken(static_cast<double>(taken) / (parts_ * pieces_));
  else if (threads > 1 && all > 0)
    division_.note_waiting(1 - static_cast<double>(sum) / all);
}

void Pool::raise() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Pool::finish() noexcept {
  for (int part = 1; part < parts_; ++part) {
    Worker& worker = *workers_[static_cast<size_t>(part - 1)];
    uint32_t state = kOffered;
    if (!worker.offered) continue;
    worker.offered = !worker.state.compare_exchange_strong(state, kIdle);  // it has begun
    if (worker.offered) await(worker);
  }
  if (learns_) learn();
  in_region_.store(false, std::memory_order_release);
}

}  // namespace

namespace regions {

void run(Work work, void* data, int parts, int most_pieces) {
  if (here.inside || parts <= 1) {
    work(data, 0, 0, 1);
    return;
  }
  if (!here.given && !own.pool) own.pool = new Pool;
  Pool& pool = *(here.given ? here.given : own.pool);
  parts = pool.start(work, data, parts, most_pieces,
                     settings().fixed_waiting ? settings().waiting : here.waiting);
  const InRegion scope(pool);
  if (parts == 1) {  // the pool may be in a region of another thread
    work(data, 0, 0, 1);
    return;
  }
  pool.work_from(0);
  pool.finish();
  pool.raise();
}

bool inside() { return here.inside; }

void* memory(size_t bytes) {
  thread_local KeptMemory of_thread;
  return (here.inside && here.part > 0 ? here.pool->memory_of(here.part) : of_thread).at_least(bytes);
}

int wanted_threads() { return here.wanted > 0 ? here.wanted : settings().threads; }
void want_threads(int threads) { here.wanted = threads; }
int most_threads() { return settings().most; }

bool end_threads() {
  if (here.inside) return false;
  delete own.pool;
  own.pool = nullptr;
  return true;
}

}  // namespace regions

ThreadFunctions bound_threads(std::vector<std::vector<int>> processors) {
  ThreadFunctions functions;
  functions.create = [all = std::move(processors), next = size_t{0}](void (*work)(void*),
                                                                     void* parameter) mutable {
    return static_cast<const void*>(new std::thread([mine = all.at(next++), work, parameter] {
      system::bind_thread(mine);
      work(parameter);
    }));
  };
  functions.join = [](const void* handle) {
    const std::unique_ptr<std::thread> thread(static_cast<std::thread*>(const_cast<void*>(handle)));
    thread->join();
  };
  return functions;
}

struct GivenThreads::State {
  Pool pool;
};

GivenThreads::GivenThreads(ThreadFunctions functions, int parts)
    : state_(new State{Pool(std::move(functions))}) {
  state_->pool.grow(parts);
}
GivenThreads::~GivenThreads() = default;

GivenThreads::Scope::Scope(GivenThreads* threads) : before_(here.given) {
  if (threads != nullptr) here.given = &threads->state_->pool;
}
GivenThreads::Scope::~Scope() { here.given = static_cast<Pool*>(before_); }

PiecesScope::PiecesScope(int pieces) : before_(std::exchange(here.pieces, pieces)) {}
PiecesScope::~PiecesScope() { here.pieces = before_; }

WaitingScope::WaitingScope(Waiting waiting, bool rest) : before_(here.waiting), rest_(rest) {
  here.waiting = waiting;
}

WaitingScope::~WaitingScope() {
  here.waiting = before_;
  Pool* const used = here.given ? here.given : own.pool;
  if (rest_ && used) used->rest();
}

}  // namespace ortrain
