// SPDX-License-Identifier: Apache-2.0
#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif
#include <unistd.h>

namespace jax_convbatch {
namespace {

int AvailableThreads() {
  int available = static_cast<int>(std::thread::hardware_concurrency());
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) available = CPU_COUNT(&set);
#endif
  if (const char* text = std::getenv("JAX_CONVBATCH_THREADS")) {
    // Python warns of what is no number (_native/targets.py).
    char* end = nullptr;
    const int64_t asked = std::strtoll(text, &end, 10);
    if (asked > 0 && *end == '\0') {
      available = static_cast<int>(std::min<int64_t>(available, asked));
    }
  }
  return std::max(available, 1);
}

// Which processors the threads of one job are on. A thread that wakes up while
// others are awaited by spinning may be put on the caller's processor, and the
// scheduler leaves both there for many calls: half the speed, next to an idle
// processor.
class Seats {
 public:
  void Clear() {
#ifdef __linux__
    CPU_ZERO(&taken_);
#endif
  }

  // Notes the calling thread's processor; where another thread of the job has
  // it, moves the calling thread to one that none has, if there is one. It is
  // free to be moved from there: the set of processors it may use stays.
  void Take() {
#ifdef __linux__
    int processor = sched_getcpu();
    if (processor < 0 || processor >= CPU_SETSIZE) return;
    cpu_set_t allowed;
    if (CPU_ISSET(processor, &taken_) &&
        sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
      cpu_set_t others;
      CPU_XOR(&others, &allowed, &taken_);
      CPU_AND(&others, &others, &allowed);
      if (CPU_COUNT(&others) > 0 &&
          sched_setaffinity(0, sizeof(others), &others) == 0) {
        processor = sched_getcpu();
        sched_setaffinity(0, sizeof(allowed), &allowed);
      }
    }
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(processor, &taken_);
#endif
  }

 private:
#ifdef __linux__
  cpu_set_t taken_;
#endif
};

// One job at a time: workers and the caller take ranges off a shared counter.
class Pool {
 public:
  explicit Pool(int threads) : process_(getpid()) {
    for (int i = 1; i < threads; ++i) {
      // Detached and never joined: the pool lives as long as the process, and
      // joining from a static destructor would wait on threads that exit
      // killed.
      std::thread([this] { Work(); }).detach();
    }
    workers_ = threads - 1;
  }

  void Run(int64_t count, int64_t grain,
           const std::function<void(int64_t, int64_t)>& body) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    // A forked child has the pool but not its threads.
    if (!turn.owns_lock() || workers_ == 0 || getpid() != process_) {
      body(0, count);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = &body;
      std::fegetenv(&environment_);
      count_ = count;
      grain_ = grain;
      next_.store(0);
      seats_.Clear();
      seats_.Take();
      open_ = true;
      ++job_;
    }
    wake_.notify_all();
    TakeRanges();
    // Everything is taken. Who has not woken up by now is not waited for.
    {
      std::lock_guard<std::mutex> lock(mutex_);
      open_ = false;
    }
    // Equal tasks end at about the same time, and to be woken takes 20 us.
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    while (busy_ > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void TakeRanges() {
    for (;;) {
      const int64_t begin = next_.fetch_add(grain_);
      if (begin >= count_) return;
      (*body_)(begin, std::min(begin + grain_, count_));
    }
  }

  void Work() {
    int64_t seen = 0;
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return job_ != seen; });
        seen = job_;
        if (!open_) continue;
        ++busy_;
        seats_.Take();
        // XLA's threads flush subnormal numbers to zero, and a thread starts
        // with what its creator had: bits would depend on who does the work.
        std::fesetenv(&environment_);
      }
      TakeRanges();
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) done_.notify_one();
    }
  }

  const pid_t process_;
  int workers_ = 0;
  std::mutex turn_;   // held by the caller whose job is running
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
  std::fenv_t environment_{};  // the caller's rounding
  int64_t count_ = 0, grain_ = 1, job_ = 0;
  bool open_ = false;
  Seats seats_;
  std::atomic<int> busy_{0};  // workers at the job
  std::atomic<int64_t> next_{0};
};

}  // namespace

int ThreadCount() {
  static const int count = AvailableThreads();
  return count;
}

void ParallelFor(int64_t count, int64_t grain,
                 const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain) {
    body(0, count);
    return;
  }
  static Pool* pool = new Pool(ThreadCount());
  pool->Run(count, grain, body);
}

}  // namespace jax_convbatch
