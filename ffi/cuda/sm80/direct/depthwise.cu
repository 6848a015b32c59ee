// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm80/direct/depthwise.cuh"
#include "cuda/sm80/direct/depthwise.h"
#include "cuda/sm80/direct/depthwise_wgrad.cuh"
#include "cuda/sm80/direct/launch.cuh"

namespace jax_convbatch::direct {
namespace {

template <int kTaps, int kStep, bool kAligned, int kLonger = -1>
struct Variant {
  static constexpr int taps = kTaps, step = kStep, longer = kLonger;
  static constexpr bool aligned = kAligned;
};

// Calls f(Variant).
template <typename F>
cudaError_t DispatchKind(Kind kind, bool aligned, F&& f) {
  switch (kind.taps * 10 + kind.step) {
    case 31:
      return f(Variant<3, 1, true>());
    case 32:
      return f(Variant<3, 2, true>());
    case 51:
      return f(Variant<5, 1, true>());
    case 52:
      return f(Variant<5, 2, true>());
    case 71:
      return f(Variant<7, 1, true>());
    case 72:
      return f(Variant<7, 2, true>());
    default:
      return aligned ? f(Variant<0, 0, true>()) : f(Variant<0, 0, false>());
  }
}

// The same where the kind may be strided.
template <typename F>
cudaError_t DispatchPatches(Kind kind, bool aligned, F&& f) {
  if (!kind.strided()) return DispatchKind(kind, aligned, f);
  if (kind.taps == 3) {
    return kind.longer == 0 ? f(Variant<3, 1, true, 0>())
                            : f(Variant<3, 1, true, 1>());
  }
  return kind.longer == 0 ? f(Variant<5, 1, true, 0>())
                          : f(Variant<5, 1, true, 1>());
}

template <typename T>
Staging StageFor(const AxisWalk& h, const AxisWalk& w, int channels, int lanes,
                 int rows, int cols, int apart) {
  const int pixel = lanes * 2 * static_cast<int>(sizeof(T));
  return MakeStaging<T>(h.in_size, w.in_size, channels, lanes * 2, rows, cols,
                        pixel, RowBytes(cols, pixel, apart));
}

template <typename T>
cudaError_t RunPatches(Op op, const Call& call, Stage stage,
                       cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const Plan& plan = call.plan;
  Walks walks;
  if (!(op == Op::kDgrad ? DgradWalks(g, &walks) : FpropWalks(g, &walks))) {
    return cudaErrorInvalidValue;
  }
  const int pixel_bytes = static_cast<int>(g.C * sizeof(T));
  const Kind kind = KindOf(walks, pixel_bytes);
  const int lanes = plan.tile_channels / 2;
  const int rows = PatchRows(kind, sizeof(T));
  const int patch_rows = plan.tile_h / rows;
  const int patch_cols = plan.tile_w / PatchCols(kind, sizeof(T));
  DepthwiseProblem p{};
  p.source = call.lhs;
  p.filter = call.rhs;
  p.result = call.result;
  p.h = walks.h;
  p.w = walks.w;
  p.in = StageFor<T>(p.h, p.w, static_cast<int>(g.C), lanes,
                     p.h.extent(plan.tile_h), p.w.extent(plan.tile_w),
                     rows * p.h.in_step);
  p.grid = MakeGrid(walks, plan, g.N);
  p.channels = static_cast<int>(g.C);
  p.channel_tiles = plan.channel_tiles;
  p.workers = plan.workers;
  p.patch_rows = FastDivmod<uint32_t>(patch_rows);
  p.patch_cols = FastDivmod<uint32_t>(patch_cols);
  p.classes_w = FastDivmod<uint32_t>(p.w.classes);
  p.patches = patch_rows * patch_cols *
              (kind.strided() ? 1 : p.h.classes * p.w.classes);
  p.sliding = IsSliding(walks);
  const int shared = PatchStages(kind, sizeof(T)) * p.in.bytes() +
                     static_cast<int>(g.taps()) * plan.tile_channels * 4;
  return DispatchPatches(kind, pixel_bytes % 16 == 0, [&](auto v) {
    auto launch = [&](auto kernel) {
      return LaunchOrPrepare(kernel, p, plan.blocks(), kThreads, shared, stage,
                             stream);
    };
    if constexpr (IsWide({v.taps, v.step, v.longer}, sizeof(T))) {
      if (lanes == kManyLanes) {
        return launch(&DepthwiseKernel<T, v.taps, v.step, v.longer, kManyLanes,
                                       v.aligned>);
      }
    }
    if constexpr (v.taps == 0) {
      if (lanes == kFewLanes) {
        return launch(&DepthwiseKernel<T, v.taps, v.step, v.longer, kFewLanes,
                                       v.aligned>);
      }
    }
    return launch(
        &DepthwiseKernel<T, v.taps, v.step, v.longer, kLanes, v.aligned>);
  });
}

template <typename T>
cudaError_t RunWgrad(const Call& call, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const Plan& plan = call.plan;
  Walks walks;
  if (!FpropWalks(g, &walks)) return cudaErrorInvalidValue;
  const int pixel_bytes = static_cast<int>(g.C * sizeof(T));
  const Kind kind = KindOf(walks, pixel_bytes);
  const int taps = static_cast<int>(g.taps());
  const int channels = static_cast<int>(g.C);
  DepthwiseWgradProblem p{};
  p.x = call.lhs;
  p.dy = call.rhs;
  p.partials = static_cast<float*>(call.workspace);
  p.h = walks.h;
  p.w = walks.w;
  p.chunks = (taps + ChunkTaps(kind) - 1) / ChunkTaps(kind);
  p.chunk_blocks = (p.chunks + kSlots - 1) / kSlots;
  p.streams = kSlots / std::min(p.chunks, kSlots);
  const int apart = p.chunks == 1 ? WgradRows(kind, sizeof(T)) * p.h.in_step
                                  : p.h.offset_step;
  p.in = StageFor<T>(p.h, p.w, channels, kLanes, p.h.extent(plan.tile_h),
                     p.w.extent(plan.tile_w), apart);
  constexpr int kPixel = kTileChannels * sizeof(T);
  p.out =
      MakeStaging<T>(p.h.out_size, p.w.out_size, channels, kTileChannels,
                     plan.tile_h, plan.tile_w, kPixel,
                     RowBytes(plan.tile_w, kPixel, WgradRows(kind, sizeof(T))));
  p.grid = MakeGrid(walks, plan, g.N);
  p.channels = channels;
  p.channel_tiles = plan.channel_tiles;
  p.workers = plan.workers;
  const int patch_rows = plan.tile_h / WgradRows(kind, sizeof(T));
  const int patch_cols = plan.tile_w / WgradCols(kind, sizeof(T));
  p.patch_rows = FastDivmod<uint32_t>(patch_rows);
  p.patch_cols = FastDivmod<uint32_t>(patch_cols);
  p.patches = patch_rows * patch_cols;
  const int tiles = kWgradStages * (p.in.bytes() + p.out.bytes());
  const int sums = kSlots * ChunkTaps(kind) * kTileChannels * 4;
  const cudaError_t error =
      DispatchKind(kind, pixel_bytes % 16 == 0, [&](auto tag) {
        return LaunchOrPrepare(
            &DepthwiseWgradKernel<T, tag.taps, tag.step, tag.aligned>, p,
            plan.blocks() * p.chunk_blocks, kThreads, std::max(tiles, sums),
            stage, stream);
      });
  if (error != cudaSuccess) return error;
  return AddPartialsOrPrepare<T>(plan.workers, g.w_size(), call.workspace,
                                 call.result, stage, stream);
}

}  // namespace

cudaError_t RunDepthwise(Op op, const Call& call, Stage stage,
                         cudaStream_t stream) {
  return DispatchType(call.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return op == Op::kWgrad ? RunWgrad<T>(call, stage, stream)
                            : RunPatches<T>(op, call, stage, stream);
  });
}

}  // namespace jax_convbatch::direct
