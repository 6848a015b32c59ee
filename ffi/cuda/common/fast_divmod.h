// SPDX-License-Identifier: Apache-2.0
// Division by a number that is known when a kernel is launched.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// Generic: 64-bit indices, where speed is not the point.
template <typename Index>
class FastDivmod {
 public:
  FastDivmod() = default;
  explicit FastDivmod(int64_t divisor) : divisor_(divisor) {}

  __device__ Index Divide(Index n) const { return n / divisor_; }
  __device__ Index divisor() const { return divisor_; }

 private:
  Index divisor_;
};

// Multiplication by 2^p / divisor rounded up, with p large enough to be exact
// for every n < 2^31 (Granlund and Montgomery, "Division by invariant integers
// using multiplication").
template <>
class FastDivmod<uint32_t> {
 public:
  FastDivmod() = default;
  explicit FastDivmod(int64_t divisor) : divisor_(divisor) {
    if (divisor == 1) return;
    int log2 = 0;
    while ((int64_t{1} << log2) < divisor) ++log2;
    const int p = 31 + log2;
    multiplier_ = ((uint64_t{1} << p) + divisor - 1) / divisor;
    shift_ = p - 32;
  }

  __device__ uint32_t Divide(uint32_t n) const {
    return divisor_ == 1 ? n : __umulhi(n, multiplier_) >> shift_;
  }
  __device__ uint32_t divisor() const { return divisor_; }

 private:
  uint32_t divisor_, multiplier_ = 0, shift_ = 0;
};

// The innermost digit of a mixed-radix number: returns `rest` modulo the radix
// and leaves the quotient in `rest`.
template <typename Index>
__device__ Index TakeDigit(const FastDivmod<Index>& radix, Index& rest) {
  const Index quotient = radix.Divide(rest);
  const Index digit = rest - quotient * radix.divisor();
  rest = quotient;
  return digit;
}

}  // namespace jax_convbatch
