// What the host tells a wgrad kernel.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_LAUNCH_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_LAUNCH_H_

#include "cuda/hopper/conv.h"
#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/wgrad_problem.h"
#include "cuda/hopper/wgrad_tiling.h"

namespace jax_convbatch::hopper {

// False where the driver refuses.
inline bool MakeWgradProblem(const ConvCall& call, WgradProblem* problem) {
  const ConvGeometry& g = call.g;
  const WgradTiling tiling(g, call.type, call.plan.tile_m, call.plan.tile_n);
  const PartAxes walk = FpropPart(g);
  const int block = static_cast<int>(tiling.block);
  problem->dw = call.result;
  problem->pieces = static_cast<float*>(call.workspace);
  problem->C = static_cast<int>(g.C);
  problem->K = static_cast<int>(g.K);
  problem->taps = static_cast<int>(g.taps());
  problem->filter_width = static_cast<int>(g.S);
  problem->channel_blocks = static_cast<int>(tiling.channel_blocks);
  problem->n_tiles = static_cast<int>(tiling.n_tiles);
  problem->tiles = static_cast<int>(tiling.tiles());
  problem->steps = static_cast<int>(tiling.steps);
  problem->blocks = call.plan.blocks;
  problem->rows = static_cast<int>(g.P);
  problem->cols = static_cast<int>(g.Q);
  problem->base_h = static_cast<int>(walk.h.input);
  problem->base_w = static_cast<int>(walk.w.input);
  problem->step_h = walk.h.input_step;
  problem->step_w = walk.w.input_step;
  problem->dilation_h = walk.h.taps.offset_step;
  problem->dilation_w = walk.w.taps.offset_step;
  return EncodeIm2col(&problem->x, call.type, call.lhs,
                      InputWalk(InputOf(g), walk, block)) &&
         EncodeTiled(&problem->dy, call.type, call.rhs, {g.K, g.N * g.P * g.Q},
                     {block, block});
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_LAUNCH_H_
