// Runs plans of wave_tf32_plan.h.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_WAVE_TF32_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_WAVE_TF32_H_

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// As Fprop, FpropAct and Dgrad of conv.h, of one group. An epilogue that is not
// plain, or asks for signs, has another kernel.
cudaError_t WaveFpropTf32(const ConvCall& call, Stage stage,
                          cudaStream_t stream);
cudaError_t WaveFpropActTf32(const ConvCall& call, Stage stage,
                             cudaStream_t stream);
cudaError_t WaveDgradTf32(const ConvCall& call, Stage stage,
                          cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_SINGLE_WAVE_WAVE_TF32_H_
