// SPDX-License-Identifier: Apache-2.0
// Launches of cp_async_conv.cuh.
#include <algorithm>

#include "cuda/sm90/kernels/cp_async/cp_async_conv.cuh"
#include "cuda/sm90/kernels/cp_async/cp_async_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

CpAsyncSubproblem MakeSubproblem(const SubproblemAxes& axes,
                                 const Activations& in, const Activations& out,
                                 const CpAsyncRuns& runs) {
  const SubproblemAxis &h = axes.h, &w = axes.w;
  CpAsyncSubproblem sub{};
  sub.grid = MakeGrid(axes, out.n);
  sub.runs = runs;
  sub.taps_h = h.taps;
  sub.taps_w = w.taps;
  const int chunks =
      static_cast<int>((runs.lead + runs.length + kChunk - 1) / kChunk);
  sub.iterations = (runs.count * chunks * kChunk + 63) / 64;
  return sub;
}

template <typename Config>
cudaError_t Launch(const CpAsyncConvProblem& problem, int blocks, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &CpAsyncConvKernel<Config>;
  const cudaError_t raised = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  kernel<<<std::min(problem.tiles, blocks), kCpAsyncThreads,
           Config::kSharedBytes, stream>>>(problem);
  return cudaGetLastError();
}

// The problem's members that follow from the sub-problems and the plan.
template <Contiguous kWeights>
cudaError_t Run(const ConvCall& call, CpAsyncConvProblem& problem, Stage stage,
                cudaStream_t stream) {
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  int pixels = 0;
  for (int i = 0; i < problem.subs; ++i) {
    pixels = std::max(pixels, problem.sub[i].grid.pixels);
  }
  problem.n_tiles = (problem.channels + n - 1) / n;
  problem.tiles = (pixels + m - 1) / m * problem.n_tiles * problem.subs;
  auto launch = [&](auto tag) {
    using T = typename decltype(tag)::type;
    return n == 64 ? Launch<CpAsyncConvConfig<T, 64, 8, kWeights>>(
                         problem, call.plan.blocks, stage, stream)
                   : Launch<CpAsyncConvConfig<T, 128, 6, kWeights>>(
                         problem, call.plan.blocks, stage, stream);
  };
  return call.type == Type::kBf16 ? launch(TypeTag<__nv_bfloat16>())
                                  : launch(TypeTag<__half>());
}

}  // namespace

cudaError_t CpAsyncFprop(const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  CpAsyncConvProblem problem{};
  problem.input = SourceOfX(g, call.lhs);
  problem.input_channels = static_cast<int>(g.C);
  problem.weights = MatrixSource(call.rhs, g.K);
  problem.output = static_cast<uint16_t*>(call.result);
  problem.output_image = g.P * g.Q * g.K;
  problem.output_row = g.Q * g.K;
  problem.output_col = g.K;
  problem.output_run = FastDivmod<uint32_t>(g.K);
  problem.output_vector = CommonVector(g.K);
  problem.channels = static_cast<int>(g.K);
  problem.subs = 1;
  problem.sub[0] = MakeSubproblem(FpropSubproblem(g), InputOf(g), OutputOf(g),
                                  MakeRuns(RunsOfX(g)));
  return Run<Contiguous::kRows>(call, problem, stage, stream);
}

cudaError_t CpAsyncDgrad(const ConvCall& call, Stage stage,
                         cudaStream_t stream) {
  // Patches: a 1x1 convolution with all of a patch as its channels.
  const bool patches = IsPatches(call.g);
  ConvGeometry g = call.g;
  if (patches) {
    g.C = g.taps() * call.g.C;
    g.R = g.S = 1;
    g.H = g.P, g.W = g.Q;
    g.stride = g.filter_dilation = {1, 1, 1};
  }
  CpAsyncConvProblem problem{};
  problem.input = {static_cast<const uint16_t*>(call.lhs),
                   static_cast<int>(g.P), static_cast<int>(g.Q * g.K),
                   CommonVector(g.K), CommonVector(g.K) == 1};
  problem.input_channels = static_cast<int>(g.K);
  problem.weights = MatrixSource(call.rhs, g.K);
  problem.weights_tap = static_cast<int>(g.C * g.K);
  problem.filter_width = static_cast<int>(g.S);
  problem.output = static_cast<uint16_t*>(call.result);
  problem.channels = static_cast<int>(g.C);
  const int64_t row = call.g.W * call.g.C;  // of dx
  const int64_t run = patches ? call.g.S * call.g.C : g.C;
  problem.output_image = call.g.H * row;
  problem.output_run = FastDivmod<uint32_t>(run);
  problem.output_run_step = row;
  problem.output_vector = CommonVector(run);
  for (const SubproblemAxes& axes : DgradSubproblems(g)) {
    CpAsyncRuns runs{};
    runs.count = axes.h.taps.count * axes.w.taps.count;
    runs.length = static_cast<int>(g.K);
    runs.chunks = FastDivmod<uint32_t>((g.K + kChunk - 1) / kChunk);
    runs.cols = FastDivmod<uint32_t>(std::max(axes.w.taps.count, 1));
    runs.step_h = axes.h.taps.offset_step;
    runs.step_w = axes.w.taps.offset_step * static_cast<int>(g.K);
    CpAsyncSubproblem& sub = problem.sub[problem.subs++];
    sub = MakeSubproblem(axes, OutputOf(g), InputOf(g), runs);
    sub.output = axes.h.output * row + axes.w.output * g.C;
    // The same for all sub-problems.
    problem.output_row = patches ? call.g.R * row : axes.h.output_step * row;
    problem.output_col = patches ? run : axes.w.output_step * g.C;
  }
  return Run<Contiguous::kReduction>(call, problem, stage, stream);
}

}  // namespace jax_convbatch::hopper
