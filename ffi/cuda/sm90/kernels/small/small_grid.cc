// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/small/small_grid.h"

#include <algorithm>

#include "cuda/common/left_out.h"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

bool IsGridded(const ConvGeometry& g) {
  auto is_small = [](int64_t channels) {
    return channels == 16 || channels == 32;
  };
  constexpr int64_t kMost = int64_t{1} << 30;
  return !IsLeftOut(Family::kSmallGrid) && is_small(g.C) && is_small(g.K) &&
         g.C + g.K > 32 && g.groups == 1 && g.D == 1 && g.O == 1 && g.T == 1 &&
         g.R == 3 && g.S == 3 && g.stride.all(1) && g.pad.d == 0 &&
         g.pad.h == 1 && g.pad.w == 1 && g.P == g.H && g.Q == g.W &&
         g.input_dilation.all(1) && g.filter_dilation.all(1) && g.N >= 1 &&
         g.N <= kMost && g.H >= 1 && g.W >= 1 && g.H <= 128 && g.W <= 128;
}

SmallGrid GridOf(const ConvGeometry& g, int64_t images) {
  const int64_t image = (g.H + 1) * (g.W + 1), box = images * image;
  const int64_t span = box - g.W - 2, blocks = (span + 63) / 64;
  // Where TMA may begin.
  const int64_t first = (g.W + 2 + 7) / 8 * 8;
  const int64_t places = first + std::max(box, blocks * 64 + g.W + 2);
  return {static_cast<int>(images), static_cast<int>(places),
          static_cast<int>(first),  static_cast<int>(box),
          static_cast<int>(span),   static_cast<int>(blocks)};
}

bool EncodeGrid(CUtensorMap* map, const ConvGeometry& g, const SmallGrid& grid,
                int64_t channels, const void* data, bool rounded) {
  const Copy copy = rounded ? Copy::kLoad : Copy::kStore;
  const auto box = {static_cast<int>(channels), static_cast<int>(g.W) + 1,
                    static_cast<int>(g.H) + 1, grid.images};
  const auto sizes = {channels, g.W, g.H, g.N};
  return channels == 32
             ? EncodeTiled(map, Type::kTf32, data, sizes, box, copy)
             : EncodeHalfLines(map, Type::kTf32, data, sizes, box, copy);
}

}  // namespace jax_convbatch::hopper
