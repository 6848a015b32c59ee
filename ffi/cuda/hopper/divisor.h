// Division in kernels by numbers that the host knows.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_DIVISOR_H_
#define JAX_CONVBATCH_CUDA_HOPPER_DIVISOR_H_

#include <cstdint>

#include "cuda/fast_divmod.h"

namespace jax_convbatch::hopper {

// An int that divides others, of 0 to 2^31 - 1, by a multiplication. A division
// is a chain of some 100 cycles, and a block's first copies would wait for
// three. By default 0, by which nothing may be divided.
class Divisor {
 public:
  Divisor() = default;
  Divisor(int value)  // NOLINT: it is one
      : value_(value), by_(value > 0 ? value : 1) {}

  __host__ __device__ operator int() const { return value_; }

  friend __device__ __forceinline__ int operator/(int x, const Divisor& d) {
    return static_cast<int>(d.by_.Divide(static_cast<uint32_t>(x)));
  }
  friend __device__ __forceinline__ int operator%(int x, const Divisor& d) {
    return x - x / d * d.value_;
  }

 private:
  int value_ = 0;
  FastDivmod<uint32_t> by_{1};
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_DIVISOR_H_
