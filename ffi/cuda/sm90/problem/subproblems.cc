// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/problem/subproblems.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/k_slices.h"
#include "cuda/sm90/problem/subproblem_axis.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int64_t kMaxCorner = 127;

}  // namespace

SubproblemAxis FpropAxis(int64_t in, int64_t out, int64_t taps, int64_t stride,
                         int64_t pad, int64_t dilation) {
  SubproblemAxis a{};
  a.count = out;
  a.output_step = 1;
  a.input = -pad;
  a.input_step = static_cast<int>(stride);
  a.taps = {static_cast<int>(taps), 0, 1, static_cast<int>(dilation)};
  a.upper = (out - 1) * stride - pad - (in - 1);
  return a;
}

SubproblemAxis DgradAxis(int64_t in, int64_t out, int64_t taps, int64_t stride,
                         int64_t pad, int64_t dilation, int64_t residue) {
  SubproblemAxis a{};
  a.count = (in - residue + stride - 1) / stride;
  a.output = residue;
  a.output_step = static_cast<int>(stride);
  a.input_step = 1;
  const int64_t step = stride / std::gcd(stride, dilation);
  int64_t first = 0;
  while (first < std::min(step, taps) &&
         (residue + pad - first * dilation) % stride != 0) {
    ++first;
  }
  if (first < std::min(step, taps)) {
    const int64_t count = (taps - 1 - first) / step + 1;
    const int64_t last = first + (count - 1) * step;
    a.taps = {static_cast<int>(count), static_cast<int>(last),
              static_cast<int>(-step),
              static_cast<int>(step * dilation / stride)};
    a.input = (residue + pad - last * dilation) / stride;
  }
  a.upper = a.count - 1 + a.input - (out - 1);
  return a;
}

bool IsPlain(const ConvGeometry& g, Type type) {
  const int vector = 16 / ElementBytes(type);
  constexpr int64_t kLimit = int64_t{1} << 31;
  auto in_range = [](int64_t value) { return 1 <= value && value < kLimit; };
  auto axis = [&](int64_t stride, int64_t pad, int64_t dilation) {
    return 1 <= stride && stride <= kMostSteps && -kLimit < pad &&
           pad < kLimit && in_range(dilation);
  };
  const auto sizes = {g.N, g.D, g.H, g.W, g.C, g.K,
                      g.T, g.R, g.S, g.O, g.P, g.Q};
  return g.groups == 1 && g.input_dilation.all(1) && g.C % vector == 0 &&
         g.K % vector == 0 &&
         std::all_of(sizes.begin(), sizes.end(), in_range) &&
         (!Is3d(g) || axis(g.stride.d, g.pad.d, g.filter_dilation.d)) &&
         axis(g.stride.h, g.pad.h, g.filter_dilation.h) &&
         axis(g.stride.w, g.pad.w, g.filter_dilation.w);
}

bool IsPlain2d(const ConvGeometry& g, Type type) {
  return !Is3d(g) && g.pad.d == 0 && IsPlain(g, type);
}

bool FitsIn32Bits(const ConvGeometry& g) {
  constexpr double kLimit = 1 << 30;
  auto axis = [&](int64_t in, int64_t out, int64_t taps, int64_t stride,
                  int64_t pad, int64_t dilation, double element) {
    const double reach = std::abs(1.0 * pad) + 1.0 * taps * dilation + 8;
    return 1 <= in && 1 <= out && 1 <= taps && 1 <= stride && 1 <= dilation &&
           1.0 * stride < kLimit &&
           (1.0 * in + 1.0 * out * stride + reach) * element < kLimit;
  };
  const double most_channels = 1.0 * std::max(g.C, g.K) + 128;
  const double in_row = 1.0 * g.W * g.C, out_row = 1.0 * g.Q * g.K;
  return g.D == 1 && g.T == 1 && g.O == 1 && g.pad.d == 0 && g.groups == 1 &&
         g.input_dilation.all(1) && 1 <= g.N && 1 <= g.C && 1 <= g.K &&
         axis(g.W, g.Q, g.S, g.stride.w, g.pad.w, g.filter_dilation.w,
              most_channels) &&
         // Displacements of filter rows are counted in elements.
         (g.R == 1 || axis(1, 1, g.R, 1, 0, g.filter_dilation.h,
                           std::max(in_row, out_row))) &&
         axis(g.H, g.P, g.R, g.stride.h, g.pad.h, g.filter_dilation.h, 1) &&
         1.0 * g.taps() * (g.C + 16) * most_channels < kLimit &&
         1.0 * g.N * g.P * g.Q / 64 * most_channels < kLimit &&
         1.0 * g.N * g.H * g.W / 64 * most_channels < kLimit &&
         1.0 * g.N * g.P * g.Q < kLimit && 1.0 * g.N * g.H * g.W < kLimit;
}

bool IsGroups2d(const ConvGeometry& g, Type type) {
  if (g.groups <= 1) return false;
  const int width = GroupWidth(g);
  const int vector = 16 / ElementBytes(type);
  if (width == kAnyGroups &&
      (g.group_C() % vector != 0 || g.group_K() % vector != 0 ||
       std::max(g.group_C(), g.group_K()) < 32)) {
    return false;
  }
  if (IsNarrow(width) && type == Type::kTf32) return false;
  ConvGeometry one = g;
  one.groups = 1;
  return IsPlain2d(one, type);
}

bool IsPatches(const ConvGeometry& g) {
  return g.D == 1 && g.T == 1 && g.O == 1 && g.pad.all(0) && g.groups == 1 &&
         g.input_dilation.all(1) && g.stride.h == g.R && g.stride.w == g.S &&
         (g.filter_dilation.h == 1 || g.R == 1) &&
         (g.filter_dilation.w == 1 || g.S == 1) && g.H == g.P * g.R &&
         g.W == g.Q * g.S;
}

ConvGeometry FoldPatches(const ConvGeometry& g, Type type) {
  if (!IsPatches(g) || g.taps() == 1 ||
      g.S * g.C * ElementBytes(type) % 16 != 0) {
    return g;
  }
  ConvGeometry folded = g;
  folded.N = g.N * g.P;
  folded.H = g.R;
  folded.W = g.Q;
  folded.C = g.S * g.C;
  folded.S = folded.P = 1;
  folded.stride = folded.filter_dilation = {1, 1, 1};
  return folded;
}

SubproblemAxes FpropSubproblem(const ConvGeometry& g) {
  return {
      FpropAxis(g.H, g.P, g.R, g.stride.h, g.pad.h, g.filter_dilation.h),
      FpropAxis(g.W, g.Q, g.S, g.stride.w, g.pad.w, g.filter_dilation.w),
      Is3d(g)
          ? FpropAxis(g.D, g.O, g.T, g.stride.d, g.pad.d, g.filter_dilation.d)
          : kOneSlice,
  };
}

bool TapsShare(const SubproblemAxis& w) {
  const int reach = (w.taps.count - 1) * w.taps.offset_step;
  return w.input_step == 1 && w.output_step == 1 && w.taps.count == 3 &&
         reach <= kTapReach && 12 * reach <= w.count &&
         w.upper + reach <= kMaxCorner;
}

SubproblemAxes WithReach(const SubproblemAxes& sub) {
  SubproblemAxes reaching = sub;
  const int reach = (sub.w.taps.count - 1) * sub.w.taps.offset_step;
  reaching.w.count += reach;
  reaching.w.upper += reach;
  return reaching;
}

std::vector<SubproblemAxes> DgradSubproblems(const ConvGeometry& g) {
  std::vector<SubproblemAxes> subs;
  const int64_t slices = Is3d(g) ? std::min(g.stride.d, g.D) : 1;
  if (slices * g.stride.h * g.stride.w > kMaxSubproblems) return subs;
  for (int64_t d = 0; d < slices; ++d) {
    for (int64_t h = 0; h < std::min(g.stride.h, g.H); ++h) {
      for (int64_t w = 0; w < std::min(g.stride.w, g.W); ++w) {
        subs.push_back({DgradAxis(g.H, g.P, g.R, g.stride.h, g.pad.h,
                                  g.filter_dilation.h, h),
                        DgradAxis(g.W, g.Q, g.S, g.stride.w, g.pad.w,
                                  g.filter_dilation.w, w),
                        Is3d(g) ? DgradAxis(g.D, g.O, g.T, g.stride.d, g.pad.d,
                                            g.filter_dilation.d, d)
                                : kOneSlice});
      }
    }
  }
  std::stable_sort(subs.begin(), subs.end(),
                   [](const SubproblemAxes& a, const SubproblemAxes& b) {
                     return a.taps() > b.taps();
                   });
  return subs;
}

Im2colWalk InputWalk(const Activations& in, const SubproblemAxes& sub,
                     int pixels, int64_t groups) {
  const SubproblemAxis &h = sub.h, &w = sub.w;
  return {in.n,    in.h,    in.w,         in.c,         h.input, w.input,
          h.upper, w.upper, h.input_step, w.input_step, pixels,  groups};
}

namespace {

// Of the box that is stored, as `upper` is of the one that is loaded.
int64_t OutputUpper(const SubproblemAxis& a, int64_t size) {
  return a.output + (a.count - 1) * a.output_step - (size - 1);
}

}  // namespace

Im2colWalk OutputWalk(const Activations& out, const SubproblemAxes& sub,
                      int pixels, int64_t groups) {
  const SubproblemAxis &h = sub.h, &w = sub.w;
  return {out.n,
          out.h,
          out.w,
          out.c,
          h.output,
          w.output,
          OutputUpper(h, out.h),
          OutputUpper(w, out.w),
          h.output_step,
          w.output_step,
          pixels,
          groups};
}

Walk3d InputWalk3d(const Activations& in, const SubproblemAxes& sub,
                   int pixels) {
  return {InputWalk(in, sub, pixels), in.d, sub.d.input, sub.d.upper,
          sub.d.input_step};
}

Walk3d OutputWalk3d(const Activations& out, const SubproblemAxes& sub,
                    int pixels) {
  return {OutputWalk(out, sub, pixels), out.d, sub.d.output,
          OutputUpper(sub.d, out.d), sub.d.output_step};
}

namespace {

bool AreImages(const Activations& in, const Activations& out,
               const SubproblemAxes& sub) {
  return in.d == 1 && out.d == 1 && sub.d.taps.count == 1;
}

}  // namespace

bool SumsInKSlices(const Activations& in, const Activations& out,
                   const SubproblemAxes& sub) {
  const int64_t stages = sub.taps() * ((in.c + 63) / 64);
  return AreImages(in, out, sub) ? stages >= 64 && out.h * out.w <= 64
                                 : stages >= 96 && out.d * out.h * out.w <= 256;
}

int Tf32KSlices(const Activations& in, const Activations& out,
                const SubproblemAxes& sub) {
  // Images come in larger batches than volumes, which have faster tiles for
  // whole sums.
  const bool images = AreImages(in, out, sub);
  const int64_t most_outputs = images ? 64 : 256;
  const int64_t least_stages = images ? 320 : 200;
  constexpr int64_t kLeastOfSlice = 32;
  const int64_t stages = sub.taps() * ((in.c + 31) / 32);
  const int64_t outputs = out.d * out.h * out.w;
  if (stages < least_stages || outputs > most_outputs) return 1;
  // As many as give the SMs of an H200 a block each of two samples' tiles of
  // 128x64. Where that is one, other tiles of whole sums are faster.
  constexpr int64_t kSamples = 2, kBlocks = 132;
  const int64_t tiles = (kSamples * outputs + 127) / 128 * ((out.c + 63) / 64);
  const int64_t most = std::min<int64_t>(kMostKSlices, stages / kLeastOfSlice);
  return static_cast<int>(std::clamp<int64_t>(kBlocks / tiles, 1, most));
}

namespace {

// Whether offsets are at most `reach`, and tiles few enough.
bool IsCountable(const Activations& out, const SubproblemAxes& sub,
                 int64_t groups, int64_t reach) {
  constexpr double kLimit = 1 << 30;
  auto fits = [&](const TapAxis& taps) {
    return taps.count == 0 ||
           int64_t{taps.count - 1} * taps.offset_step <= reach;
  };
  // Products of many factors, as floating point does not overflow.
  const double pixels = 1.0 * out.n * sub.d.count * sub.h.count * sub.w.count;
  return fits(sub.d.taps) && fits(sub.h.taps) && fits(sub.w.taps) &&
         pixels < kLimit &&
         (pixels / 64 + 1) * (out.c / 64 + groups) * kMaxSubproblems < kLimit;
}

// Those of a map of five coordinates.
constexpr int64_t kReachOfFive = 31;

}  // namespace

bool IsWalkable(Type type, const Activations& in, const Activations& out,
                const SubproblemAxes& sub, int64_t groups) {
  return IsCountable(out, sub, groups, groups > 1 ? kReachOfFive : 255) &&
         IsEncodable(type, InputWalk(in, sub, 64, groups)) &&
         IsEncodable(type, OutputWalk(out, sub, 64, groups));
}

bool IsWalkable3d(Type type, const Activations& in, const Activations& out,
                  const SubproblemAxes& sub) {
  // Tiles of f32 may walk so far that three taps share their pixels.
  const TapAxis& taps = sub.w.taps;
  const bool may_share = type == Type::kTf32 && taps.count == 3 &&
                         (taps.count - 1) * taps.offset_step <= kTapReach;
  const SubproblemAxes& walk = may_share ? WithReach(sub) : sub;
  return IsCountable(out, sub, 1, kReachOfFive) &&
         IsEncodable(type, InputWalk3d(in, walk, 64)) &&
         IsEncodable(type, OutputWalk3d(out, sub, 64));
}

}  // namespace jax_convbatch::hopper
