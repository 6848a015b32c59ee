// The matrix products over columns by the kernels of implicit_gemm, for which
// columns are images of column_size() channels under a 1x1 filter. For one
// group, on Hopper, of f32 as TF32 (cuBLAS has no kernels of that generation
// for operands that lie as ours do), and fprop of 16-bit types.
#ifndef JAX_CONVBATCH_CUDA_POINTWISE_GEMMS_H_
#define JAX_CONVBATCH_CUDA_POINTWISE_GEMMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "conv_geometry.h"
#include "cuda/conv_call.h"
#include "cuda/hopper/paths.h"
#include "cuda/sampling.h"

namespace jax_convbatch {

class PointwiseGemms {
 public:
  // `g` is of the convolution over the whole batch. On the current device.
  PointwiseGemms(Operation operation, const ConvGeometry& g, hopper::Type type);

  // Bytes that products of slices of the batch need; negative where one cannot
  // run.
  int64_t Workspace(int64_t slice) const;

  // What must be transposed into the workspace before fprop; or nothing.
  Transposition Filter(const void* w, void* workspace) const;

  // fprop: y from columns and w, plus the bias if there is one. dgrad: columns
  // from dy and w. wgrad: dw of these samples from columns and dy. kPrepare
  // does all but the launch.
  cudaError_t Run(cudaStream_t stream, hopper::Stage stage, int64_t samples,
                  const void* lhs, const void* rhs, const void* bias,
                  void* result, void* workspace) const;

 private:
  ConvGeometry Images(int64_t samples) const;
  // Whether fprop takes its filter transposed.
  bool Transposes() const;

  hopper::Op operation_;
  const ConvGeometry& g_;
  hopper::Type type_;
  int multiprocessors_ = 0;
};

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_POINTWISE_GEMMS_H_
