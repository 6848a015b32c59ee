// SPDX-License-Identifier: Apache-2.0
// Which taps of depth a tile sums. Those whose slices all lie before or after a
// volume would add zeros, and zeros of padding come slower than slices of x:
// of three slices and three taps they are up to a third.
#pragma once

namespace jax_convbatch::hopper {

struct DepthTaps {
  int first, end;
};

// Of `taps` taps, `step` > 0 slices apart, those from the first to the last
// that read one of `slices` slices for base slices from `low` to `high` >= low;
// one at least.
__device__ __forceinline__ DepthTaps TapsInside(int low, int high, int taps,
                                                int step, int slices) {
  DepthTaps inside = {0, taps};
  while (inside.first < taps - 1 && high + inside.first * step < 0) {
    ++inside.first;
  }
  while (inside.end > inside.first + 1 &&
         low + (inside.end - 1) * step >= slices) {
    --inside.end;
  }
  return inside;
}

}  // namespace jax_convbatch::hopper
