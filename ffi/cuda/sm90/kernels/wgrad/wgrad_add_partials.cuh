// SPDX-License-Identifier: Apache-2.0
// The second kernel of wgrad: adds the partials of tiles that several blocks
// did.
#pragma once

#include "cuda/common/dependent_launch.cuh"
#include "cuda/sm90/epilogue/add_in_order.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_partials.cuh"

namespace jax_convbatch::hopper {

// Of one thread of a tile's consumers, a thread here has kEach of the quads
// that lie side by side. A block has teams.lanes() such sets.
template <typename Config, int kEach>
__global__ void __launch_bounds__(kAddThreads)
    AddWgradPartials(const __grid_constant__ WgradTiles tiles, AddTeams teams) {
  constexpr int kTileQuads = Config::kQuads * Config::kConsumed;
  static_assert(kEach <= 8 && Config::kQuads % kEach == 0);
  __shared__ AddRing ring;
  const unsigned tile_blocks = kTileQuads / kEach >> teams.lane_bits;
  const unsigned tile = blockIdx.x / tile_blocks;
  const unsigned in_tile =
      ((blockIdx.x - tile * tile_blocks) << teams.lane_bits) + teams.lane();
  const int quad = in_tile / Config::kConsumed * kEach;
  const int thread = in_tile % Config::kConsumed;
  const int of_all = tiles.first_shared + tile;
  const bool has = HasQuad<Config>(tiles, of_all, quad, thread);
  const PartialRange range = PartialsOf(tiles, tile);
  if (range.count == 1) return;  // whole: in dw already
  const int begin = teams.Begin(teams.group(), range.count);
  const int end = teams.Begin(teams.group() + 1, range.count);
  // Of blocks that have two slots each the first may have used the second.
  const int64_t block = range.first + begin;
  const bool second = range.second && begin == 0;
  const int slots = tiles.splits > 0 ? 1 : 2;
  PartialLine line;
  line.at = reinterpret_cast<const float4*>(tiles.partials) +
            (slots * block + second) * kTileQuads + quad * Config::kConsumed +
            thread;
  line.step = slots * kTileQuads;
  line.first_step = line.step - second * kTileQuads;
  line.count = has ? end - begin : 0;
  QuadsPlace<typename Config::T> place;
  float4 sum[kEach];
  WaitForPrimary();
  AddInOrder<kEach, Config::kConsumed>(sum, line, ring, [&] {
    place = PlaceOf<Config>(tiles, of_all, quad / 8, thread);
  });
  if (!teams.Join(sum, ring) || !has) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    WriteQuad<Config>(place, quad % 8 + i, sum[i]);
  }
}

}  // namespace jax_convbatch::hopper
