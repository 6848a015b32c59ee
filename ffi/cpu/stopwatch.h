// SPDX-License-Identifier: Apache-2.0
// Where the time of the CPU handlers goes, for the benchmark that watches it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace jax_convbatch {

// Nanoseconds since the process started, over all calls.
inline std::atomic<int64_t> products_time{0};  // in matrix products
inline std::atomic<int64_t> handlers_time{0};  // in whole handlers

// Adds the time for which it lives; where each of several threads has one, its
// part of it.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<int64_t>* total, int threads = 1)
      : total_(total), threads_(threads) {}
  ~Stopwatch() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    total_->fetch_add(
        std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count() /
            threads_,
        std::memory_order_relaxed);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<int64_t>* total_;
  int threads_;
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

}  // namespace jax_convbatch
