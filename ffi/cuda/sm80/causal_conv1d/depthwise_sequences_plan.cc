// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences_call.h"

namespace jax_convbatch::direct {
namespace {

struct Axis {
  int64_t in, out, taps, pad, dilation;

  // Neither moves nor adds up anything.
  bool is_idle() const { return in == 1 && out == 1 && taps == 1 && pad == 0; }
};

// The only axis that is in use.
std::optional<Axis> OnlyAxis(const ConvGeometry& g) {
  const Axis axes[] = {{g.D, g.O, g.T, g.pad.d, g.filter_dilation.d},
                       {g.H, g.P, g.R, g.pad.h, g.filter_dilation.h},
                       {g.W, g.Q, g.S, g.pad.w, g.filter_dilation.w}};
  const Axis* only = nullptr;
  for (const Axis& axis : axes) {
    if (axis.is_idle()) continue;
    if (only != nullptr) return std::nullopt;
    only = &axis;
  }
  return only == nullptr ? std::nullopt : std::optional<Axis>(*only);
}

// Whether chunks of rows would be empty for the most part.
bool HasFewRows(const Axis& axis) {
  constexpr int64_t kFew = 8, kChunk = 16;
  return axis.out <= kFew ||
         (axis.dilation > 1 && axis.out < kChunk * axis.dilation);
}

// Whether all numbers that the kernel has in 32 bits fit them.
bool IsSmall(const Axis& axis, int64_t shift, int64_t N, int64_t C, int size) {
  constexpr int64_t kLimit = int64_t{1} << 29;
  return axis.in < kLimit && axis.out < kLimit && std::abs(shift) < kLimit &&
         1.0 * (axis.taps - 1) * axis.dilation < kLimit && N < kLimit &&
         C < kLimit && 1.0 * N * axis.out < INT32_MAX / 2 &&
         1.0 * axis.dilation * C * size < INT32_MAX;
}

}  // namespace

std::optional<DepthwiseSequences> SequencesOf(Op op, const ConvGeometry& given,
                                              Type type) {
  if (op == Op::kWgrad || given.groups == 1 || given.N < 1 ||
      given.C != given.groups || given.K != given.groups ||
      !given.stride.all(1) || !given.input_dilation.all(1)) {
    return std::nullopt;
  }
  const ConvGeometry g = op == Op::kDgrad ? DgradAsFprop(given) : given;
  const auto axis = OnlyAxis(g);
  if (!axis || axis->in < 1 || axis->taps < 2 ||
      axis->taps > causal::kMostTaps || axis->out < 1) {
    return std::nullopt;
  }
  DepthwiseSequences found{};
  CausalConv1d& call = found.call;
  call.G = 1;
  call.n = g.N;
  call.L = axis->out;
  call.C = g.C;
  call.taps = axis->taps;
  call.dilation = axis->dilation;
  call.state_rows = (axis->taps - 1) * axis->dilation;
  call.activation = Activation::kIdentity;
  call.dtype = type == Type::kF32    ? ffi::F32
               : type == Type::kBf16 ? ffi::BF16
                                     : ffi::F16;
  found.x_rows = axis->in;
  found.shift = call.state_rows - axis->pad;
  found.few_rows = HasFewRows(*axis);
  found.vector = g.C % 4 == 0 ? 4 : g.C % 2 == 0 ? 2 : 1;
  const int size = type == Type::kF32 ? 4 : 2;
  if (!IsSmall(*axis, found.shift, g.N, g.C, size) ||
      !found.tasks().fits(call.G)) {
    return std::nullopt;
  }
  return found;
}

std::optional<Plan> PlanDepthwiseSequences(Op op, const ConvGeometry& g,
                                           Type type) {
  const auto sequences = SequencesOf(op, g, type);
  if (!sequences) return std::nullopt;
  const causal::Tasks tasks = sequences->tasks();
  Plan plan{};
  plan.tile_h = tasks.teams;
  plan.tile_w = sequences->few_rows ? 1 : static_cast<int>(tasks.chunk);
  plan.tile_channels = tasks.lanes * sequences->vector;
  plan.channel_tiles = static_cast<int>(tasks.tiles);
  plan.workers = static_cast<int>(tasks.groups);
  plan.preferred = true;
  plan.sequences = true;
  return plan;
}

}  // namespace jax_convbatch::direct
