// SPDX-License-Identifier: Apache-2.0
// Launches AddWgradPartials.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_add_partials.cuh"

namespace jax_convbatch::hopper {

// How AddWgradPartials adds the shared tiles, of so many quads each.
inline AddTeams TeamsOf(const WgradTiles& tiles, int64_t quads) {
  const int shared = tiles.tiles - tiles.first_shared;
  return AddTeams::For(shared * quads, tiles.blocks / shared / tiles.cluster);
}

// Launches an AddWgradPartials whose threads have `each` quads of `quads` in a
// tile.
inline cudaError_t LaunchAddWgradPartials(void (*kernel)(WgradTiles, AddTeams),
                                          int each, int64_t quads,
                                          const WgradTiles& tiles,
                                          cudaStream_t stream) {
  const AddTeams teams = TeamsOf(tiles, quads);
  const int shared = tiles.tiles - tiles.first_shared;
  return LaunchKernel(
      kernel,
      {shared * (quads / each / teams.lanes()), kAddThreads, Start::kEarly},
      stream, tiles, teams);
}

}  // namespace jax_convbatch::hopper
