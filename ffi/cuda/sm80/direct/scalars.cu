// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/scalars.cuh"

namespace jax_convbatch::direct {
namespace {

using Divmod = FastDivmod<uint32_t>;
using Kernel = void(ScalarProblem);

template <int kRows, int kTaps, int... kOutputs>
constexpr std::array<Kernel*, sizeof...(kOutputs)> Kernels(
    std::integer_sequence<int, kOutputs...>) {
  return {&ScalarKernel<kOutputs + 1, kRows, kTaps>...};
}

template <int kRows, int kMostOutputs>
Kernel* KernelOf(const ScalarAxis& rows, int outputs) {
  constexpr std::make_integer_sequence<int, kMostOutputs> kOutputs{};
  constexpr auto kOfAny = Kernels<kRows, 0>(kOutputs);
  constexpr auto kOfThree = Kernels<kRows, 3>(kOutputs);
  constexpr auto kOfFive = Kernels<kRows, 5>(kOutputs);
  const bool near = rows.step == 1;
  return (near && rows.taps == 3   ? kOfThree
          : near && rows.taps == 5 ? kOfFive
                                   : kOfAny)[outputs - 1];
}

ScalarAxis AxisOf(bool dgrad, int64_t x_size, int64_t y_size, int64_t taps,
                  int64_t pad, int64_t dilation) {
  const int64_t first = dgrad ? pad - (taps - 1) * dilation : -pad;
  return {static_cast<int>(dgrad ? y_size : x_size),
          static_cast<int>(dgrad ? x_size : y_size), static_cast<int>(taps),
          static_cast<int>(first), static_cast<int>(dilation)};
}

}  // namespace

cudaError_t RunScalars(Op op, const Call& call, Stage stage,
                       cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const bool dgrad = op == Op::kDgrad;
  ScalarProblem p{};
  p.source = static_cast<const float*>(call.lhs);
  p.filter = static_cast<const float*>(call.rhs);
  p.result = static_cast<float*>(call.result);
  p.d = AxisOf(dgrad, g.D, g.O, g.T, g.pad.d, g.filter_dilation.d);
  p.h = AxisOf(dgrad, g.H, g.P, g.R, g.pad.h, g.filter_dilation.h);
  p.w = AxisOf(dgrad, g.W, g.Q, g.S, g.pad.w, g.filter_dilation.w);
  // Of a sequence the only axis, of columns of one pixel.
  if (IsSequence(g)) std::swap(p.h, p.w);
  const int of_tap = static_cast<int>(g.C * g.K);
  p.channels = static_cast<int>(dgrad ? g.K : g.C);
  p.outputs = static_cast<int>(dgrad ? g.C : g.K);
  p.filter_first = dgrad ? static_cast<int>(g.taps() - 1) * of_tap : 0;
  p.tap_step = dgrad ? -of_tap : of_tap;
  p.in_step = static_cast<int>(dgrad ? 1 : g.K);
  p.out_step = static_cast<int>(dgrad ? g.K : 1);
  const int rows = call.plan.tile_h, outputs = call.plan.tile_channels;
  const int row_groups = (p.h.out_size + rows - 1) / rows;
  const int output_groups = p.outputs / outputs;
  p.output_groups = Divmod(output_groups);
  p.columns = Divmod(p.w.out_size);
  p.row_groups = Divmod(row_groups);
  p.slices = Divmod(p.d.out_size);
  constexpr int kMost = kMostScalarOutputs;
  Kernel* const kernel = rows == 1 ? KernelOf<1, kMost>(p.h, outputs)
                         : rows == kScalarRows
                             ? KernelOf<kScalarRows, kMost>(p.h, outputs)
                             : KernelOf<kMoreScalarRows, 4>(p.h, outputs);
  // As many samples at once as FastDivmod is exact for.
  const int64_t of_sample =
      int64_t{p.d.out_size} * row_groups * p.w.out_size * output_groups;
  const int64_t most = std::min(g.N, ((int64_t{1} << 31) - 1) / of_sample);
  const int64_t sample = g.x_size() / g.N, result = g.y_size() / g.N;
  for (int64_t n = 0; n < g.N; n += most) {
    p.items = static_cast<uint32_t>(std::min(most, g.N - n) * of_sample);
    const cudaError_t error = LaunchOrPrepare(
        kernel, p, call.plan.blocks(), kScalarThreads,
        static_cast<int>(g.w_size() * sizeof(float)), stage, stream);
    if (error != cudaSuccess) return error;
    p.source += most * (dgrad ? result : sample);
    p.result += most * (dgrad ? sample : result);
  }
  return cudaSuccess;
}

}  // namespace jax_convbatch::direct
