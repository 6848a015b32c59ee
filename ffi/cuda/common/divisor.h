// SPDX-License-Identifier: Apache-2.0
// Division in kernels by numbers that the host knows.
#pragma once

#include <cstdint>

namespace jax_convbatch::hopper {

// An int of 0 to 2^31 - 1 that divides others of the same range by a
// multiplication: with 2^shift the next power of two, x / d is
// x ceil(2^(31 + shift) / d) / 2^(31 + shift), rounded down. A division is a
// chain of some 100 cycles, and a block's first copies would wait for three. By
// default 0, by which nothing may be divided.
class Divisor {
 public:
  Divisor() = default;
  Divisor(int value) : value_(value) {  // NOLINT: it is one
    const uint64_t d = value > 0 ? value : 1;
    while ((uint64_t{1} << shift_) < d) ++shift_;
    multiplier_ =
        static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) - 1) / d + 1);
  }

  __host__ __device__ operator int() const { return value_; }

  friend __device__ __forceinline__ int operator/(int x, const Divisor& d) {
    return static_cast<int>(
        __umulhi(static_cast<uint32_t>(x) * 2, d.multiplier_) >> d.shift_);
  }
  friend __device__ __forceinline__ int operator%(int x, const Divisor& d) {
    return x - x / d * d.value_;
  }

 private:
  int value_ = 0, shift_ = 0;
  uint32_t multiplier_ = 0;
};

}  // namespace jax_convbatch::hopper
