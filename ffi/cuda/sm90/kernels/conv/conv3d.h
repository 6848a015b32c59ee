// SPDX-License-Identifier: Apache-2.0
// Three spatial axes as they lie in memory: TMA walks slices as it walks rows.
// Others are convolutions of two axes, of copies (depth.py).
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV3D_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV3D_H_

#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/sm90/problem/op.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Nothing where there is no kernel: for one slice of taps, or what TMA cannot
// express; and where copies cost less.
std::optional<Plan> Plan3d(Op op, const ConvGeometry& g, Type type,
                           int multiprocessors);

// Run one; see conv.h. Those of Tf32 and single waves are called by the others.
cudaError_t Fprop3d(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t Dgrad3d(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t Wgrad3d(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t Fprop3dTf32(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t Dgrad3dTf32(const ConvCall& call, Stage stage, cudaStream_t stream);
cudaError_t SingleWave3d(Op op, const ConvCall& call, Stage stage,
                         cudaStream_t stream);
cudaError_t SingleWave3dTf32(Op op, const ConvCall& call, Stage stage,
                             cudaStream_t stream);

// With an epilogue, but for the ReLU bitmask: of any kind, in 16 bits with the
// map of its residual; plain.
cudaError_t FpropAct3d(const ConvCall& call, const Epilogue& epilogue,
                       Stage stage, cudaStream_t stream);
cudaError_t FpropAct3dTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream);
cudaError_t FpropPlain3d(const ConvCall& call, Stage stage,
                         cudaStream_t stream);
cudaError_t SingleWavePlain3dTf32(const ConvCall& call,
                                  const PlainEpilogue<false>& epilogue,
                                  Stage stage, cudaStream_t stream);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_CONV_CONV3D_H_
