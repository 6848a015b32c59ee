// SPDX-License-Identifier: Apache-2.0
// Where wgrad's kernels read x: base pixels and the offsets of taps.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_WGRAD_WGRAD_WALK_CUH_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_WGRAD_WGRAD_WALK_CUH_

#include "cuda/sm90/arch/tensor_copies.cuh"
#include "cuda/sm90/copy/copies_3d.cuh"
#include "cuda/sm90/problem/wgrad_problem.h"

namespace jax_convbatch::hopper {

// The d are those of three axes.
struct TapOffset {
  int w, h, d = 0;

  // Of the first tap of a row, of the filter's T R.
  template <bool k3d>
  __device__ static TapOffset OfRow(const WgradProblem& problem, int row) {
    int t = 0;
    if constexpr (k3d) {
      uint32_t slice = row;
      row = static_cast<int>(TakeDigit(problem.by_slice_rows, slice));
      t = static_cast<int>(slice) * problem.dilation_d;
    }
    return {0, row * problem.dilation_h, t};
  }
};

struct PixelPlace {
  int w, h, image, d = 0;

  // Of dy, `image` the number of its slice among those of all images.
  template <bool k3d>
  __device__ static PixelPlace InDy(const WgradProblem& problem, int col,
                                    int row, uint32_t image) {
    int slice = 0;
    if constexpr (k3d) {
      slice = static_cast<int>(TakeDigit(problem.by_slices, image));
    }
    return {col, row, static_cast<int>(image), slice};
  }

  // Of a pixel of dy, the base pixel in x.
  template <bool k3d>
  __device__ PixelPlace InX(const WgradProblem& problem) const {
    return {problem.base_w + w * problem.step_w,
            problem.base_h + h * problem.step_h, image,
            k3d ? problem.base_d + d * problem.step_d : 0};
  }
};

template <bool k3d>
__device__ __forceinline__ void LoadTap(uint32_t to, const CUtensorMap& map,
                                        uint32_t barrier, int c,
                                        const PixelPlace& at,
                                        const TapOffset& tap) {
  if constexpr (k3d) {
    Load3dIm2col(to, map, barrier, c, at.w, at.h, at.d, at.image, tap.w, tap.h,
                 tap.d);
  } else {
    LoadIm2col(to, map, barrier, c, at.w, at.h, at.image, tap.w, tap.h);
  }
}

// To blocks of a cluster, see MulticastIm2col.
template <bool k3d>
__device__ __forceinline__ void MulticastTap(
    uint32_t to, const CUtensorMap& map, uint32_t barrier, int c,
    const PixelPlace& at, const TapOffset& tap, uint16_t blocks) {
  if constexpr (k3d) {
    Multicast3dIm2col(to, map, barrier, c, at.w, at.h, at.d, at.image, tap.w,
                      tap.h, tap.d, blocks);
  } else {
    MulticastIm2col(to, map, barrier, c, at.w, at.h, at.image, tap.w, tap.h,
                    blocks);
  }
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_WGRAD_WGRAD_WALK_CUH_
