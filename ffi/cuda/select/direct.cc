// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm80/direct/direct.h"

#include <algorithm>
#include <cstdint>

#include "cuda/common/left_out.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences.h"
#include "cuda/sm80/direct/depthwise.h"
#include "cuda/sm80/direct/grouped.h"
#include "cuda/sm80/direct/quads.h"
#include "cuda/sm80/direct/scalars.h"
#include "cuda/sm90/kernels/depthwise/depthwise_copies.h"
#include "cuda/sm90/kernels/depthwise/depthwise_planes.h"
#include "cuda/sm90/kernels/depthwise/depthwise_toeplitz.h"

namespace jax_convbatch::direct {
namespace {

// Larger groups fill the tensor cores' ordinary tiles; with so many, columns
// have not been compared.
constexpr int64_t kMostGroupChannels = 32;

// 2-D, with samples and channels, and small enough for 32-bit offsets in a
// sample.
bool IsPlain2d(const ConvGeometry& g) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  const double sample = 1.0 * g.H * g.W * g.C, result = 1.0 * g.P * g.Q * g.K;
  return g.D == 1 && g.T == 1 && g.O == 1 && g.pad.d == 0 && g.N > 0 &&
         g.C > 0 && g.K > 0 && sample < kLimit && result < kLimit &&
         1.0 * g.N * g.H * g.W < kLimit && 1.0 * g.N * g.P * g.Q < kLimit;
}

bool IsDepthwise(const ConvGeometry& g) {
  return g.group_C() == 1 && g.group_K() == 1;
}

// Long sequences in 16 bits of 16 and 24 channels, which leave much of a tile
// of matrices empty: 16x65536 steps of 16->16, 3 taps, take tiles 73 us, these
// kernels 53, and in wgrad 92 and 65; but wgrad of 16384 of 24 channels, 11
// taps, 15 and 37, and 4x4096 of 16, 7 taps 9 apart, 4.2 and 6.8 (H200). From
// where on between these they are slower depends on the batch, too.
bool IsThinSequence(Op op, const ConvGeometry& g, Type type) {
  constexpr int64_t kLongInAll = 1 << 16;
  const bool wgrad = op == Op::kWgrad;
  if (wgrad && g.N * g.Q < kLongInAll) return false;
  const int64_t least = wgrad ? 4096 : 8192;
  const bool sequence = g.H == 1 && g.R == 1 && g.P == 1 && g.S > 1;
  return g.groups == 1 && type != Type::kF32 && sequence && g.Q >= least &&
         std::min(g.C, g.K) >= 16 && std::max(g.C, g.K) <= 24;
}

// What kernels that multiply f32 as it is take it for.
Type Stored(Type type) { return type == Type::kTf32 ? Type::kF32 : type; }

// The samples of short sequences, of one token above all, as rows of one image:
// tiles have many of them, where one sample would leave most of a tile empty.
ConvGeometry SamplesAsRows(const ConvGeometry& g) {
  constexpr int64_t kShort = 8;
  const bool sequences = g.D * g.T * g.O * g.H * g.R * g.P == 1 &&
                         g.pad.h == 0 && g.stride.h == 1 &&
                         g.input_dilation.h == 1;
  if (!IsDepthwise(g) || !sequences || std::min(g.W, g.Q) > kShort) return g;
  ConvGeometry rows = g;
  rows.H = rows.P = g.N;
  rows.N = 1;
  return IsPlain2d(rows) ? rows : g;
}

}  // namespace

std::optional<Plan> MakePlan(Op op, const ConvGeometry& given, Type asked,
                             int multiprocessors, bool hopper) {
  const Type type = Stored(asked);
  const ConvGeometry g = SamplesAsRows(given);
  auto sequences = Unless(Family::kDepthwiseSequences, [&] {
    return PlanDepthwiseSequences(op, given, type);
  });
  if (sequences) return sequences;
  const auto scalars = Unless(Family::kScalars, [&] {
    return PlanScalars(op, given, type, multiprocessors);
  });
  if (scalars) return scalars;
  const bool covered = g.groups > 1 || IsThinSequence(op, g, type);
  if (!covered || g.is_pointwise() || !IsPlain2d(g)) return std::nullopt;
  std::optional<Plan> plan;
  if (IsDepthwise(g)) {
    if (hopper) {
      plan = Unless(Family::kDepthwiseToeplitz, [&] {
        return PlanDepthwiseToeplitz(op, g, asked, multiprocessors);
      });
    }
    if (hopper && !plan) {
      plan = Unless(Family::kDepthwiseCopies, [&] {
        return PlanDepthwiseCopies(op, g, type, multiprocessors);
      });
    }
    if (hopper && !plan) {
      plan = Unless(Family::kDepthwisePlanes, [&] {
        return PlanDepthwisePlanes(op, g, type, multiprocessors);
      });
    }
    if (!plan) plan = PlanDepthwise(op, g, type, multiprocessors, hopper);
  } else if (!IsLeftOut(Family::kDirectGroups) &&
             std::max(g.group_C(), g.group_K()) <= kMostGroupChannels) {
    plan = type == Type::kF32 ? PlanQuads(op, g, multiprocessors)
                              : PlanGrouped(op, g, multiprocessors);
  }
  if (!plan) return plan;
  // As the handler carves it.
  plan->workspace = (plan->workspace + 255) / 256 * 256;
  plan->preferred =
      plan->quads || std::min(g.group_C(), g.group_K()) < kMostGroupChannels;
  return plan;
}

std::string PlanName(Op op, const Plan& plan) {
  std::string name = std::to_string(plan.tile_h) + "x" +
                     std::to_string(plan.tile_w) + "x" +
                     std::to_string(plan.tile_channels);
  if (op == Op::kWgrad) name += "/" + std::to_string(plan.workers);
  return name;
}

std::optional<Plan> FindPlan(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors, bool hopper,
                             std::string_view name) {
  const auto plan = MakePlan(op, g, type, multiprocessors, hopper);
  if (!plan || name.empty() || PlanName(op, *plan) == name) return plan;
  return std::nullopt;
}

cudaError_t Run(Op op, const Call& asked, Stage stage, cudaStream_t stream) {
  const Call given{asked.g,   Stored(asked.type), asked.plan,     asked.lhs,
                   asked.rhs, asked.result,       asked.workspace};
  const ConvGeometry g = SamplesAsRows(given.g);
  const Call call{g,         given.type,   given.plan,     given.lhs,
                  given.rhs, given.result, given.workspace};
  if (call.plan.copies) return RunDepthwiseCopies(op, call, stage, stream);
  if (call.plan.toeplitz) {
    return RunDepthwiseToeplitz(op, call, stage, stream);
  }
  if (call.plan.planes) return RunDepthwisePlanes(op, call, stage, stream);
  if (call.plan.sequences) {
    return RunDepthwiseSequences(op, given, stage, stream);
  }
  if (call.plan.scalars) return RunScalars(op, given, stage, stream);
  if (call.plan.quads) return RunQuads(op, call, stage, stream);
  return IsDepthwise(call.g) ? RunDepthwise(op, call, stage, stream)
                             : RunGrouped(op, call, stage, stream);
}

}  // namespace jax_convbatch::direct
