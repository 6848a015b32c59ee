// SPDX-License-Identifier: Apache-2.0
// The matrix products over columns by the kernels of implicit_gemm, for which
// columns are images of column_size() channels under a 1x1 filter. For one
// group, on Hopper, of f32 as TF32 (cuBLAS has no kernels of that generation
// for operands that lie as ours do), and fprop of 16-bit types.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/deform/sampling.h"
#include "cuda/select/paths.h"
#include "cuda/sm90/kernels/column_gemm/column_gemm.h"

namespace jax_convbatch {

// How the products of a batch run, slice by slice.
struct PointwisePlans {
  // Of whole slices, and of what is left after them.
  struct Product {
    hopper::Plan plan;
    hopper::ColumnGemmPlan columns;  // where the filter is transposed
  };
  Product whole, rest;
  bool transposes;  // whether fprop takes its filter transposed
  bool adds_bias;   // whether fprop can
  int64_t workspace;
  int multiprocessors;
};

// Nothing where cuBLAS should multiply: that depends on `g` without N alone.
// Needs no GPU.
std::optional<PointwisePlans> PlanPointwise(Operation operation,
                                            const ConvGeometry& g,
                                            hopper::Type type, int64_t slice,
                                            int multiprocessors);

class PointwiseGemms {
 public:
  // `g` is of the convolution over the whole batch. On the current device.
  PointwiseGemms(Operation operation, const ConvGeometry& g, hopper::Type type,
                 int64_t slice);

  // Whether there are plans. The other functions take that for granted.
  bool covers() const { return plans_.has_value(); }
  int64_t workspace() const { return plans_->workspace; }

  // What must be transposed into the workspace before fprop; or nothing.
  Transposition Filter(const void* w, void* workspace) const;

  // fprop: y from columns and w, plus the bias if there is one. dgrad: columns
  // from dy and w. wgrad: dw of these samples from columns and dy. Of a slice,
  // or of the rest. kPrepare does all but the launch.
  cudaError_t Run(cudaStream_t stream, Stage stage, int64_t samples,
                  const void* lhs, const void* rhs, const void* bias,
                  void* result, void* workspace) const;

 private:
  hopper::Op operation_;
  const ConvGeometry& g_;
  hopper::Type type_;
  int64_t slice_;
  std::optional<PointwisePlans> plans_;
};

}  // namespace jax_convbatch
