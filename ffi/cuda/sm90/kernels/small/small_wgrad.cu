// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm80/direct/add_partials.cuh"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/small/small_wgrad.cuh"
#include "cuda/sm90/kernels/small/small_wgrad.h"

namespace jax_convbatch::hopper {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a tile, or 0 where one would read far more rows of x than of dy.
int64_t Rows(const ConvGeometry& g) {
  const int64_t most =
      std::min(kSmallPixels / g.Q, kSmallInputs / (g.Q + 2) - 2);
  return most < 3 ? 0 : CeilDiv(g.P, CeilDiv(g.P, most));
}

int64_t Tiles(const ConvGeometry& g) { return g.N * CeilDiv(g.P, Rows(g)); }

template <typename Config>
cudaError_t Launch(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const auto kernel = &SmallWgradKernel<Config>;
  const bool prepares = stage == Stage::kPrepare;
  const int bytes = Config::kWords * 4;
  const cudaError_t raised = RaiseSharedMemory(kernel, bytes);
  if (raised != cudaSuccess) return raised;
  SmallWgradProblem p{};
  p.x = static_cast<const float*>(call.lhs);
  p.dy = static_cast<const float*>(call.rhs);
  p.partials = static_cast<float*>(call.workspace);
  p.H = static_cast<int>(g.H);
  p.W = static_cast<int>(g.W);
  p.P = static_cast<int>(g.P);
  p.Q = static_cast<int>(g.Q);
  p.pad_h = static_cast<int>(g.pad.h);
  p.pad_w = static_cast<int>(g.pad.w);
  p.rows = static_cast<int>(Rows(g));
  p.down = FastDivmod<uint32_t>(CeilDiv(g.P, Rows(g)));
  p.divide_q = FastDivmod<uint32_t>(g.Q);
  p.divide_in_w = FastDivmod<uint32_t>(g.Q + 2);
  p.tiles = static_cast<int>(Tiles(g));
  if (!prepares) {
    kernel<<<call.plan.blocks, Config::kThreads, bytes, stream>>>(p);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return direct::AddPartialsOrPrepare<float>(
      call.plan.blocks, Config::kSums, call.workspace, call.result,
      prepares ? direct::Stage::kPrepare : direct::Stage::kLaunch, stream);
}

}  // namespace

std::optional<Plan> PlanSmallWgrad(const ConvGeometry& g, int multiprocessors) {
  const bool known = (g.C == 16 || g.C == 32) && (g.K == 16 || g.K == 32) &&
                     g.C + g.K > 32 && g.R == 3 && g.S == 3 &&
                     g.stride.h == 1 && g.stride.w == 1 &&
                     g.filter_dilation.h == 1 && g.filter_dilation.w == 1;
  constexpr double kMost = int64_t{1} << 30;
  if (!known || Rows(g) == 0 || 1.0 * g.N * g.P > kMost ||
      1.0 * g.H * g.W * g.C > kMost || 1.0 * g.P * g.Q * g.K > kMost) {
    return std::nullopt;
  }
  const int64_t at_once = multiprocessors * (g.C + g.K < 64 ? 2 : 1);
  const auto blocks = static_cast<int>(std::min(at_once, Tiles(g)));
  return Plan{static_cast<int>(Rows(g) * g.Q), static_cast<int>(g.K), blocks,
              blocks * g.w_size() * 4, Path::kSmall};
}

cudaError_t SmallWgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.g.C * 100 + call.g.K) {
    case 1632:
      return Launch<SmallWgradConfig<16, 32>>(call, stage, stream);
    case 3216:
      return Launch<SmallWgradConfig<32, 16>>(call, stage, stream);
    case 3232:
      return Launch<SmallWgradConfig<32, 32>>(call, stage, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace jax_convbatch::hopper
