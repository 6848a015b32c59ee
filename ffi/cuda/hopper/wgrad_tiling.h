// How wgrad's product is cut into tiles. Host only.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_TILING_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_TILING_H_

#include <cstdint>

#include "conv_geometry.h"
#include "cuda/hopper/conv.h"

namespace jax_convbatch::hopper {

// Filter rows come in blocks of 128 bytes of channels of one tap; a tile has
// some of them, some output channels, and one step for each so many pixels.
struct WgradTiling {
  int64_t block, channel_blocks, filter_blocks, m_tiles, n_tiles, steps;

  WgradTiling(const ConvGeometry& g, Type type, int tile_m, int tile_n)
      : block(128 / ElementBytes(type)),
        channel_blocks((g.C + block - 1) / block),
        filter_blocks(g.taps() * channel_blocks),
        m_tiles((filter_blocks * block + tile_m - 1) / tile_m),
        n_tiles((g.K + tile_n - 1) / tile_n),
        steps((g.N * g.P * g.Q + block - 1) / block) {}

  int64_t tiles() const { return m_tiles * n_tiles; }
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_TILING_H_
