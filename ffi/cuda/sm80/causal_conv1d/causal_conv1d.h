// SPDX-License-Identifier: Apache-2.0
// The short causal depthwise convolution: what the handlers call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "causal_conv1d_call.h"

namespace jax_convbatch::causal {

inline constexpr int kMostTaps = 8;

// Of the kernels' dtypes, whose accumulator is float; null where there is none.
struct Arrays {
  const void* x;
  const float *w, *bias;
  const void* state;
  const int32_t* ids;
  void* y;  // of fprop and update
  void* new_state;
  const void* dy;  // of the gradient
  void *dx, *dstate;
  float *dw, *dbias;
  float* partials;
};

cudaError_t Fprop(cudaStream_t stream, const CausalConv1d& call,
                  const Arrays& arrays);
cudaError_t Grad(cudaStream_t stream, const CausalConv1d& call,
                 const Arrays& arrays);
// new_state may be the state.
cudaError_t Update(cudaStream_t stream, const CausalConv1d& call,
                   const Arrays& arrays);

// Of the gradient: how many floats `partials` has.
int64_t PartialSums(const CausalConv1d& call);

}  // namespace jax_convbatch::causal
