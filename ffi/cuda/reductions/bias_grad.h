// SPDX-License-Identifier: Apache-2.0
// The handlers of the bias gradient, alone and with an activation's derivative:
// what they check alike.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "activation.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

namespace ffi = ::xla::ffi;

// dy[B, rows, K], summed over the rows in chunks of `chunk_rows`.
struct SumSizes {
  int64_t B, rows, K, chunk_rows;

  std::string Describe(const char* op) const;
};

// dz[] = derivative(saved[]) dy[]; db[B, K] = its sums, where db is not null.
// bitmask: `saved` is a bit for each element, the first of eight the lowest of
// a byte, and dz is dy where it is set; not of f64, and K a multiple of 8.
struct ActGradCall {
  SumSizes sizes;
  Activation activation;
  bool bitmask;
  const void *saved, *dy;
  void *dz, *partials, *db;
};

// T: double, float, __half, __nv_bfloat16.
template <typename T>
cudaError_t ActGrad(const ActGradCall& call, cudaStream_t stream);

// Whether the arrays have the sizes' elements, the dtype, and the workspace its
// bytes. db may be null.
ffi::Error CheckSums(const char* op, const SumSizes& sizes,
                     const ffi::AnyBuffer& dy, const ffi::AnyBuffer* db,
                     const ffi::AnyBuffer& workspace);

}  // namespace jax_convbatch
