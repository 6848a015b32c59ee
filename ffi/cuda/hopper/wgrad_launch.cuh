// Launches AddPieces.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WGRAD_LAUNCH_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_WGRAD_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/hopper/launch.cuh"
#include "cuda/hopper/wgrad_pieces.cuh"

namespace jax_convbatch::hopper {

// Threads of a block of AddPieces that share the runs of one sum: the more, the
// longer it is.
inline int AddLanes(const WgradTiles& tiles) {
  const int shared = tiles.tiles - tiles.first_shared;
  const int count = tiles.blocks / shared / tiles.cluster;
  return kAddThreads / (count <= 16 ? 1 : count <= 40 ? 4 : 8);
}

// Launches an AddPieces whose threads have `each` quads of `quads` in a tile.
inline cudaError_t LaunchAddPieces(void (*kernel)(WgradTiles, int), int each,
                                   int64_t quads, const WgradTiles& tiles,
                                   cudaStream_t stream) {
  const int lanes = AddLanes(tiles);
  const int shared = tiles.tiles - tiles.first_shared;
  return LaunchDependent(kernel, shared * (quads / each / lanes), kAddThreads,
                         stream, tiles, lanes);
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WGRAD_LAUNCH_CUH_
