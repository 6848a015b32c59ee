// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz.h"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz_kinds.h"

namespace jax_convbatch::direct {
namespace {

// With fewer taps the other kernels are as fast or faster: 4x8192 steps of 1024
// channels in bf16, 64 taps, take these 216 us, the others 186; 1x2048 of 4096,
// 128 taps, 52 and 86; 8x28x28 of 64, 9x9, 9.4 and 10.1 (H200).
constexpr int64_t kFewestTaps = 81, kFewestOfSequence = 96;
// On an axis: the outputs of wgrad's tile, and rows and columns of a part of
// dy.
constexpr int64_t kMostTaps = 32;
// Shared memory has room for fewer.
constexpr int64_t kMostOfSequence = 4096;
constexpr int64_t kMostBytes = int64_t{1} << 31;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// As walk.cc has it: none is empty, and 32-bit coordinates hold all.
bool IsShort(int64_t in, int64_t out, int64_t taps, int64_t pad) {
  constexpr int64_t kLimit = int64_t{1} << 26;
  auto is_size = [](int64_t n) { return 1 <= n && n < kLimit; };
  return is_size(in) && is_size(out) && is_size(taps) && std::abs(pad) < kLimit;
}

bool IsPlain(const ConvGeometry& g) {
  return g.C == g.groups && g.K == g.groups && g.C % 4 == 0 &&
         g.stride.all(1) && g.filter_dilation.all(1) &&
         g.input_dilation.all(1) && g.N > 0 && g.D * g.T * g.O == 1 &&
         g.pad.d == 0 && IsShort(g.H, g.P, g.R, g.pad.h) &&
         IsShort(g.W, g.Q, g.S, g.pad.w);
}

}  // namespace

std::optional<ToeplitzShape> ToeplitzShapeOf(Op op, const ConvGeometry& given) {
  if (!IsPlain(given)) return std::nullopt;
  const ConvGeometry g = op == Op::kDgrad ? DgradAsFprop(given) : given;
  ToeplitzShape s{};
  s.in_h = g.H, s.in_w = g.W, s.pad_h = g.pad.h, s.pad_w = g.pad.w;
  s.out_h = g.P, s.out_w = g.Q, s.filter_h = g.R, s.filter_w = g.S;
  s.kind.sequence = g.H == 1 && g.R == 1 && g.P == 1 && g.pad.h == 0;
  if (op == Op::kWgrad) {
    if (s.kind.sequence) return std::nullopt;
    std::swap(s.out_h, s.filter_h);
    std::swap(s.out_w, s.filter_w);
  }
  if (s.kind.sequence) {
    if (s.filter_w < kFewestOfSequence || s.filter_w > kMostOfSequence) {
      return std::nullopt;
    }
    s.part_h = CeilDiv(s.filter_w, 32);
    s.part_w = 32;
    s.kind.runs = 4;
    s.kind.steps = 5;
    s.kind.row_blocks = s.out_w <= 512 ? 1 : 2;
    s.down = 1;
    s.across = CeilDiv(s.out_w, s.kind.row_blocks * 16 * 32);
  } else {
    if (g.R * g.S < kFewestTaps || std::max(g.R, g.S) > kMostTaps) {
      return std::nullopt;
    }
    const bool small = std::max(s.out_h, s.out_w) <= 16;
    s.kind.row_blocks = small ? 1 : 2;
    s.kind.runs = small ? 2 : 4;
    s.down = CeilDiv(s.filter_h, kMostTaps);
    s.across = CeilDiv(s.filter_w, kMostTaps);
    s.part_h = CeilDiv(s.filter_h, s.down);
    s.part_w = CeilDiv(s.filter_w, s.across);
    s.kind.steps = s.part_w <= 9 ? 2 : s.part_w <= 17 ? 3 : 5;
    if (op == Op::kWgrad) {
      if (s.out_h > s.kind.row_blocks * 16 || s.out_w > s.kind.runs * 8) {
        return std::nullopt;
      }
    } else {
      if (s.down * s.across != 1) return std::nullopt;
      s.down = CeilDiv(s.out_h, s.kind.row_blocks * 16);
      s.across = CeilDiv(s.out_w, s.kind.runs * 8);
    }
  }
  s.items = g.N * s.down * s.across;
  s.shared_bytes = 0;
  ForToeplitzKind(s.kind, [&](auto tiling) {
    s.shared_bytes = tiling.SharedBytes(static_cast<int>(s.part_h));
  });
  const double of_sample =
      4.0 * g.C * std::max(g.input_pixels(), g.output_pixels());
  if (s.shared_bytes == 0 || s.shared_bytes > hopper::kMostShared ||
      of_sample >= kMostBytes || s.items > INT32_MAX / 2) {
    return std::nullopt;
  }
  return s;
}

std::optional<Plan> PlanDepthwiseToeplitz(Op op, const ConvGeometry& g,
                                          Type type, int multiprocessors) {
  if (type == Type::kF32) return std::nullopt;
  const auto shape = ToeplitzShapeOf(op, g);
  if (!shape) return std::nullopt;
  constexpr int kOfMultiprocessor = 228 << 10;
  // As registers have room for.
  const bool is_small = shape->kind.row_blocks == 1 && !shape->kind.sequence;
  const int most = is_small ? 3 : 2;
  const int resident =
      std::clamp(kOfMultiprocessor / (shape->shared_bytes + 1024), 1, most);
  Plan plan{};
  plan.tile_h = shape->kind.row_blocks * 16;
  plan.tile_w = shape->kind.runs * 8;
  plan.tile_channels = 8;
  plan.channel_tiles = static_cast<int>(CeilDiv(g.C, plan.tile_channels));
  const int64_t at_once = int64_t{multiprocessors} * resident;
  plan.workers = static_cast<int>(
      std::clamp<int64_t>(at_once / plan.channel_tiles, 1, shape->items));
  // As many as take turns of the same number.
  plan.workers = static_cast<int>(
      CeilDiv(shape->items, CeilDiv(shape->items, plan.workers)));
  plan.toeplitz = true;
  if (op == Op::kWgrad) plan.workspace = plan.workers * g.taps() * g.C * 4;
  return plan;
}

}  // namespace jax_convbatch::direct
