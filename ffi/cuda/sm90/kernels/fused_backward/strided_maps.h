// SPDX-License-Identifier: Apache-2.0
// How TMA moves x and dx of a layer of 1x1 filters and stride 1 or 2, in boxes
// of 64 pixels and 64 channels. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_STRIDED_MAPS_H_
#define JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_STRIDED_MAPS_H_

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/copy/strided_pixels.cuh"
#include "cuda/sm90/problem/fused_backward.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

inline StridedPixels StridedPixelsOf(const ConvGeometry& g) {
  StridedPixels pixels{};
  pixels.rows = static_cast<int>(g.P);
  pixels.cols = static_cast<int>(g.Q);
  pixels.step_h = static_cast<int>(g.stride.h);
  pixels.step_w = static_cast<int>(g.stride.w);
  for (const SubproblemAxes& sub : DgradSubproblems(g)) {
    pixels.sub_h[pixels.subs] = static_cast<int>(sub.h.output);
    pixels.sub_w[pixels.subs] = static_cast<int>(sub.w.output);
    ++pixels.subs;
  }
  return pixels;
}

// False where the driver refuses.
inline bool EncodeX(const FusedBackwardCall& call, CUtensorMap* map) {
  const ConvGeometry& g = call.g;
  if (g.is_pointwise()) {
    return EncodeTiled(map, call.type, call.x, {g.C, g.N * g.output_pixels()},
                       {64, 64});
  }
  return EncodeIm2col(map, call.type, call.x,
                      InputWalk(InputOf(g), FpropSubproblem(g), 64));
}

// The same of dx: a map for each of StridedPixels' sub-problems.
inline bool EncodeDx(const FusedBackwardCall& call, CUtensorMap* maps) {
  const ConvGeometry& g = call.g;
  if (g.is_pointwise()) {
    return EncodeTiled(maps, call.type, call.dx, {g.C, g.N * g.output_pixels()},
                       {64, 64}, Copy::kStore);
  }
  for (const SubproblemAxes& sub : DgradSubproblems(g)) {
    if (!EncodeIm2col(maps++, call.type, call.dx,
                      OutputWalk(InputOf(g), sub, 64), Copy::kStore)) {
      return false;
    }
  }
  return true;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_KERNELS_FUSED_BACKWARD_STRIDED_MAPS_H_
