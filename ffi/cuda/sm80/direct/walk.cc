// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/direct/walk.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace jax_convbatch::direct {

bool MakeWalk(const AxisEquation& e, AxisWalk* walk) {
  constexpr int64_t kLimit = int64_t{1} << 26;
  for (int64_t value : {e.in_size, e.out_size, e.taps, e.out_scale,
                        std::abs(e.dilation), e.in_scale}) {
    if (value < 1 || value >= kLimit) return false;
  }
  if (std::abs(e.shift) >= kLimit || e.out_size * e.out_scale >= kLimit ||
      e.taps * std::abs(e.dilation) >= kLimit) {
    return false;
  }
  const int64_t common = std::gcd(e.out_scale, e.in_scale);
  const int64_t classes = e.in_scale / common;
  if (classes > kMaxClasses) return false;
  // Taps of a class are `period` apart; visited so that inputs ascend.
  const int64_t period =
      e.in_scale / std::gcd(std::abs(e.dilation), e.in_scale);
  const int64_t sign = e.dilation < 0 ? -1 : 1;
  walk->in_size = static_cast<int>(e.in_size);
  walk->out_size = static_cast<int>(e.out_size);
  walk->filter_size = static_cast<int>(e.taps);
  walk->classes = static_cast<int>(classes);
  walk->in_step = static_cast<int>(e.out_scale / common);
  walk->tap_step = static_cast<int>(sign * period);
  walk->offset_step =
      static_cast<int>(period * std::abs(e.dilation) / e.in_scale);

  int64_t low = kLimit, high = -kLimit;
  for (int64_t c = 0; c < classes; ++c) {
    ClassTaps& taps = walk->taps[c];
    taps = {0, 0, 0};
    const int64_t at = c * e.out_scale + e.shift;
    int64_t first = 0;
    while (first < period && (at + first * e.dilation) % e.in_scale != 0) {
      ++first;
    }
    if (first >= std::min(period, e.taps)) continue;
    const int64_t count = (e.taps - 1 - first) / period + 1;
    if (sign < 0) first += (count - 1) * period;
    const int64_t input = (at + first * e.dilation) / e.in_scale;
    taps = {static_cast<int>(count), static_cast<int>(first),
            static_cast<int>(input)};
    low = std::min(low, input);
    high = std::max(high, input + (count - 1) * walk->offset_step);
  }
  if (low > high) low = high = 0;
  walk->origin = static_cast<int>(low);
  walk->span = static_cast<int>(high - low);
  for (int64_t c = 0; c < classes; ++c) {
    ClassTaps& taps = walk->taps[c];
    if (taps.count > 0) taps.input -= walk->origin;
  }
  return true;
}

bool FpropWalks(const ConvGeometry& g, Walks* walks) {
  return MakeWalk({g.H, g.P, g.R, g.stride.h, -g.pad.h, g.filter_dilation.h,
                   g.input_dilation.h},
                  &walks->h) &&
         MakeWalk({g.W, g.Q, g.S, g.stride.w, -g.pad.w, g.filter_dilation.w,
                   g.input_dilation.w},
                  &walks->w);
}

bool DgradWalks(const ConvGeometry& g, Walks* walks) {
  return MakeWalk({g.P, g.H, g.R, g.input_dilation.h, g.pad.h,
                   -g.filter_dilation.h, g.stride.h},
                  &walks->h) &&
         MakeWalk({g.Q, g.W, g.S, g.input_dilation.w, g.pad.w,
                   -g.filter_dilation.w, g.stride.w},
                  &walks->w);
}

}  // namespace jax_convbatch::direct
