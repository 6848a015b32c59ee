// SPDX-License-Identifier: Apache-2.0
// Where wgrad's kernels read x: base pixels and the offsets of taps.
#pragma once

#include "cuda/sm90/copy/copies_3d.cuh"
#include "cuda/sm90/problem/wgrad_problem.h"

namespace jax_convbatch::hopper {

// Of the first tap of a row, of the filter's T R.
template <bool kVolumes>
__device__ __forceinline__ TapOffset OffsetOfRow(const WgradProblem& problem,
                                                 int row) {
  if constexpr (!kVolumes) return {0, row * problem.dilation_h};
  uint32_t slice = row;
  const int r = static_cast<int>(TakeDigit(problem.by_slice_rows, slice));
  return {0, r * problem.dilation_h,
          static_cast<int>(slice) * problem.dilation_d};
}

// Of a pixel of dy, `image` the number of its slice among those of all images.
template <bool kVolumes>
__device__ __forceinline__ PixelPlace PlaceInDy(const WgradProblem& problem,
                                                int col, int row,
                                                uint32_t image) {
  if constexpr (!kVolumes) return {col, row, static_cast<int>(image)};
  const int slice = static_cast<int>(TakeDigit(problem.by_slices, image));
  return {col, row, static_cast<int>(image), slice};
}

// Of a pixel of dy, the base pixel in x.
template <bool kVolumes>
__device__ __forceinline__ PixelPlace PlaceInX(const WgradProblem& problem,
                                               const PixelPlace& dy) {
  return {problem.base_w + dy.w * problem.step_w,
          problem.base_h + dy.h * problem.step_h, dy.image,
          kVolumes ? problem.base_d + dy.d * problem.step_d : 0};
}

}  // namespace jax_convbatch::hopper
