// SPDX-License-Identifier: Apache-2.0
// The tiles that a block works on, one after another, in a ring of stages: the
// next ones are copied while one is worked on.
#pragma once

#include "cuda/sm80/direct/staging.cuh"

namespace jax_convbatch::direct {

// Of blocks that take every workers-th tile. fill(stage, place) starts to copy
// a tile.
template <int kStages, typename Fill>
class TileRing {
 public:
  // Starts to copy the first tiles.
  __device__ __forceinline__ TileRing(const TileGrid& grid, int worker,
                                      int workers, const Fill& fill)
      : grid_(grid), workers_(workers), fill_(fill) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      Fetch(worker + i * workers, i, places_[i]);
    }
  }

  // Waits for `tile`, whose turn it is, and starts to copy another one.
  __device__ __forceinline__ TilePlace Wait(int tile) {
    WaitForCopies<kStages - 2>();
    // Everybody's copies are there, and everybody has done with the tile
    // before, whose place the next copies take.
    __syncthreads();
    Fetch(tile + (kStages - 1) * workers_,
          stage_ == 0 ? kStages - 1 : stage_ - 1, places_[kStages - 1]);
    const TilePlace place = places_[0];
#pragma unroll
    for (int i = 1; i < kStages; ++i) places_[i - 1] = places_[i];
    return place;
  }

  // Where the tile is that was waited for.
  __device__ __forceinline__ int stage() const { return stage_; }

  __device__ __forceinline__ void Advance() {
    stage_ = stage_ == kStages - 1 ? 0 : stage_ + 1;
  }

 private:
  __device__ __forceinline__ void Fetch(int tile, int stage, TilePlace& place) {
    if (tile < grid_.tiles) {
      place = PlaceOf(grid_, tile);
      fill_(stage, place);
    }
    CommitCopies();
  }

  const TileGrid& grid_;
  const int workers_;
  const Fill& fill_;
  int stage_ = 0;
  TilePlace places_[kStages];  // of the tiles in the stages, in their order
};

}  // namespace jax_convbatch::direct
