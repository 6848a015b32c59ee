// SPDX-License-Identifier: Apache-2.0
#include "cuda/select/paths.h"

#include <algorithm>

#include "cuda/common/left_out.h"
#include "cuda/select/volumes.h"
#include "cuda/sm90/kernels/conv/transposed_plan.h"
#include "cuda/sm90/kernels/few_channels/few_channels_plan.h"
#include "cuda/sm90/kernels/few_channels/few_channels_tf32_plan.h"
#include "cuda/sm90/kernels/few_channels/stem_tf32_plan.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/kernels/padding/pad_plan.h"
#include "cuda/sm90/kernels/row_streaming/row_streaming_plan.h"
#include "cuda/sm90/kernels/skinny/skinny_plan.h"
#include "cuda/sm90/kernels/small/small_plan.h"
#include "cuda/sm90/kernels/small/small_wgrad.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/wgrad_tiling.h"

namespace jax_convbatch::hopper {
namespace {

// Filters as wide as some of their strides, of channels that fill no box, and
// in f32 filters as wide as their stride: the pixels of a stride along a row as
// the channels of one, where TMA can take these. It is the same convolution of
// the same memory, of fewer taps, and its rows are read without steps.
ConvGeometry FoldColumns(const ConvGeometry& g, Type type) {
  const int64_t step = g.stride.w;
  const int64_t bytes = g.C * ElementBytes(type);
  // In 16 bits tiles with steps are as fast or faster (dx of 128x128x128
  // 64->128 2x2x2 at batch 2 190 us, 214 without; f32 437 and 403; H200).
  const bool wide = g.S == step && type == Type::kTf32;
  if (step == 1 || g.S % step != 0 || g.W % step != 0 || g.pad.w % step != 0 ||
      g.filter_dilation.w != 1 || g.groups != 1 || !g.input_dilation.all(1) ||
      (bytes >= 128 && !wide) || step * bytes % 16 != 0) {
    return g;
  }
  ConvGeometry folded = g;
  folded.W = g.W / step;
  folded.S = g.S / step;
  folded.C = g.C * step;
  folded.pad.w = g.pad.w / step;
  folded.stride.w = 1;
  return folded;
}

// Whether fprop and dgrad of 32 channels of f32 are faster in tiles of 64, as
// they are in large images.
bool PrefersCopies(Op op, const ConvGeometry& g) {
  return op != Op::kWgrad && g.C == 32 && g.K == 32 && g.P * g.Q >= 4096;
}

// Whether few-channels kernels are faster than what fills boxes of 64 channels
// up with zeros.
bool PrefersFewChannels(Op op, const ConvGeometry& g) {
  if (g.taps() == 1) return false;
  // 16x256x256 16->16 3x3 takes tiles 57 us, these 73, but 8x64000 steps of
  // 16->32, 7 taps, 50 and 31 (H200). 4x4096 of 16->16, 7 taps 9 apart, takes
  // tiles 4.2 us.
  constexpr int64_t kFar = 32, kFew = 24;
  const bool far =
      (g.S - 1) * g.filter_dilation.w >= kFar && std::max(g.C, g.K) <= kFew;
  const int64_t most = g.H == 1 && g.R == 1 && !far ? 16 : 8;
  switch (op) {
    case Op::kFprop:
      return g.C <= most;
    case Op::kDgrad:
      return g.K <= most;
    default:
      return std::min(g.C, g.K) <= (g.taps() > 9 ? 16 : 8);
  }
}

std::optional<Plan> PlanFewChannels(Op op, const ConvGeometry& g,
                                    int multiprocessors) {
  return Unless(Family::kFewChannels, [&] {
    return ByOp(op, PlanFewChannelsFprop, PlanFewChannelsDgrad,
                PlanFewChannelsWgrad)(g, multiprocessors);
  });
}

std::optional<Plan> PlanRowStreaming(Op op, const ConvGeometry& g,
                                     int multiprocessors) {
  if (op == Op::kWgrad || IsLeftOut(Family::kRowStreaming)) return std::nullopt;
  return op == Op::kFprop ? PlanRowStreamingFprop(g, multiprocessors)
                          : PlanRowStreamingDgrad(g, multiprocessors);
}

cudaError_t RunFewChannels(Op op, const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  if (call.type != Type::kTf32) {
    return ByOp(op, FewChannelsFprop, FewChannelsDgrad, FewChannelsWgrad)(
        call, stage, stream);
  }
  if (op == Op::kWgrad) return FewChannelsTf32Wgrad(call, stage, stream);
  const bool dgrad = op == Op::kDgrad;
  return IsStem(call.g, dgrad) ? StemTf32(call, dgrad, stage, stream)
                               : FewChannelsTf32(call, dgrad, stage, stream);
}

// Of skinny 1x1 layers, and of few channels of f32.
cudaError_t RunSmall(Op op, const ConvCall& call, Stage stage,
                     cudaStream_t stream) {
  const auto run = call.g.taps() == 1
                       ? ByOp(op, SkinnyFprop, SkinnyDgrad, SkinnyWgrad)
                       : ByOp(op, SmallFprop, SmallDgrad, SmallWgrad);
  return run(call, stage, stream);
}

}  // namespace

ConvGeometry Fold(Op op, const ConvGeometry& g, Type type) {
  // Patches are folded where their pixels are read; dgrad writes them. In f32
  // FoldColumns has those of no more rows than TMA steps over.
  const bool near = type == Type::kTf32 && g.stride.h <= kMostSteps;
  if (Is3d(g) || near || !IsPatches(g)) return FoldColumns(g, type);
  return op == Op::kDgrad ? g : FoldPatches(g, type);
}

bool TakesGroups(Op op, const ConvGeometry& g, Type type, int multiprocessors) {
  if (g.is_pointwise()) return false;
  ConvGeometry one = g;
  one.groups = 1;
  const bool alone =
      op == Op::kWgrad && IsWgradAlone(g, type) && IsPlain2d(one, type);
  const bool narrow = IsGroupTf32(g, type) && !IsLeftOut(Family::kGroupTf32);
  if (!IsGroups2d(g, type) && !narrow && !alone) return false;
  return PlanCopies(op, g, type, multiprocessors).has_value();
}

std::optional<Plan> PlanPath(Op op, const ConvGeometry& geometry, Type type,
                             int multiprocessors) {
  if (geometry.groups > 1) {
    return TakesGroups(op, geometry, type, multiprocessors)
               ? PlanCopies(op, geometry, type, multiprocessors)
               : std::nullopt;
  }
  const ConvGeometry g = Fold(op, geometry, type);
  if (Is3d(g)) return PlanVolumes(op, g, type, multiprocessors);
  if (type == Type::kTf32 && IsPlain2d(g, type) && !PrefersCopies(op, g)) {
    const auto plan = ByOp(op, PlanSmallFprop, PlanSmallDgrad, PlanSmallWgrad);
    const auto small =
        Unless(Family::kSmall, [&] { return plan(g, multiprocessors); });
    if (small) return small;
  }
  if (type == Type::kTf32) {
    const auto few_channels = Unless(Family::kFewChannelsTf32, [&] {
      return op == Op::kWgrad
                 ? PlanFewChannelsTf32Wgrad(g, multiprocessors)
                 : PlanFewChannelsTf32(g, op == Op::kDgrad, multiprocessors);
    });
    if (few_channels) return few_channels;
    if (op != Op::kWgrad) {
      const auto stem = Unless(Family::kStemTf32, [&] {
        return PlanStem(g, op == Op::kDgrad, multiprocessors);
      });
      if (stem) return stem;
    }
  }
  const auto plan_skinny =
      ByOp(op, PlanSkinnyFprop, PlanSkinnyDgrad, PlanSkinnyWgrad);
  const auto narrow = Unless(
      Family::kSkinny, [&] { return plan_skinny(g, type, multiprocessors); });
  if (narrow) return narrow;
  const bool fits = type != Type::kTf32 && FitsIn32Bits(g);
  if (fits && PrefersFewChannels(op, g)) {
    if (const auto few_channels = PlanFewChannels(op, g, multiprocessors))
      return few_channels;
  }
  if (const auto copies = PlanCopies(op, g, type, multiprocessors)) {
    return op == Op::kFprop ? OrTransposed(*copies, g, type, multiprocessors)
                            : copies;
  }
  if (fits) {
    if (const auto few_channels = PlanFewChannels(op, g, multiprocessors))
      return few_channels;
    if (const auto row_streaming = PlanRowStreaming(op, g, multiprocessors))
      return row_streaming;
  }
  return Unless(Family::kPadding,
                [&] { return PlanPads(op, g, type, multiprocessors); });
}

bool HasEpilogue(const Plan& plan, const ConvGeometry& g, Type type) {
  if (g.groups > 1 || plan.k_slices > 1) return false;
  switch (plan.path) {
    case Path::kCopies:
    case Path::kSmall:
      return true;
    case Path::kPads:
      return g.K * ElementBytes(type) % 16 == 0;
    case Path::kFewChannels:
      // As the stems of networks are.
      return type == Type::kTf32 || (g.K % 8 == 0 && !FewChannelsShape(g).odd);
    default:
      return false;
  }
}

bool HasReluBitmask(const Plan& plan, const ConvGeometry& given, Type type) {
  const ConvGeometry g = Fold(Op::kFprop, given, type);
  return (plan.path != Path::kFewChannels || type == Type::kTf32) &&
         g.K % 8 == 0 && HasEpilogue(plan, g, type);
}

cudaError_t RunPath(Op op, const ConvCall& given, int multiprocessors,
                    Stage stage, cudaStream_t stream) {
  const ConvGeometry g = Fold(op, given.g, given.type);
  const ConvCall call = {
      g,         given.type,   given.plan,      given.lhs,
      given.rhs, given.result, given.workspace, given.epilogue};
  if (op == Op::kFprop && call.epilogue != nullptr &&
      (!HasEpilogue(call.plan, g, call.type) ||
       (call.epilogue->bitmask != nullptr &&
        !HasReluBitmask(call.plan, given.g, call.type)))) {
    return cudaErrorInvalidValue;
  }
  switch (given.plan.path) {
    case Path::kCopies:
      return RunCopies(op, call, stage, stream);
    case Path::kPads:
      return RunPads(op, call, multiprocessors, stage, stream);
    case Path::kFewChannels:
      return RunFewChannels(op, call, stage, stream);
    case Path::kSmall:
      return RunSmall(op, call, stage, stream);
    case Path::kRowStreaming:
      return op == Op::kFprop ? RowStreamingFprop(call, stage, stream)
                              : RowStreamingDgrad(call, stage, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_convbatch::hopper
