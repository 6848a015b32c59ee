#include "cuda/hopper/small_grid.h"

#include <algorithm>

namespace jax_convbatch::hopper {

bool IsGridded(const ConvGeometry& g) {
  auto is_small = [](int64_t channels) {
    return channels == 16 || channels == 32;
  };
  constexpr int64_t kMost = int64_t{1} << 30;
  return is_small(g.C) && is_small(g.K) && g.C + g.K > 32 && g.groups == 1 &&
         g.D == 1 && g.O == 1 && g.T == 1 && g.R == 3 && g.S == 3 &&
         g.stride.all(1) && g.pad.d == 0 && g.pad.h == 1 && g.pad.w == 1 &&
         g.P == g.H && g.Q == g.W && g.input_dilation.all(1) &&
         g.filter_dilation.all(1) && g.N >= 1 && g.N <= kMost && g.H >= 1 &&
         g.W >= 1 && g.H <= 128 && g.W <= 128;
}

SmallGrid GridOf(const ConvGeometry& g, int64_t images) {
  const int64_t image = (g.H + 1) * (g.W + 1);
  const int64_t span = (images - 1) * image + g.H * (g.W + 1) - 1;
  const int64_t sixteens = (span + 15) / 16, first = g.W + 2;
  // Room, too, for what threads have of a bias's gradient when a block is done.
  const int64_t places = std::max<int64_t>(first + sixteens * 16 + g.W + 2, 48);
  return {static_cast<int>(images), static_cast<int>(images * g.H * g.W),
          static_cast<int>(places), static_cast<int>(first),
          static_cast<int>(sixteens)};
}

}  // namespace jax_convbatch::hopper
