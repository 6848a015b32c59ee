// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/bf16x6/bf16x6.h"
#include "cuda/sm90/kernels/bf16x6/bf16x6_conv.cuh"
#include "cuda/sm90/kernels/bf16x6/bf16x6_filter.cuh"
#include "cuda/sm90/kernels/bf16x6/bf16x6_wgrad.cuh"
#include "cuda/sm90/kernels/wgrad/wgrad_launch.h"
#include "cuda/sm90/problem/conv_subproblem_axes.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

// Copies of f32 as it is, not as TF32.
constexpr Copy kPlain = Copy::kStore;

struct FilterSizes {
  int64_t depth, width;  // of the terms, rounded up

  FilterSizes(Op op, const ConvGeometry& g)
      : depth(((op == Op::kDgrad ? g.K : g.C) + kBf16x6Depth - 1) /
              kBf16x6Depth * kBf16x6Depth),
        width(((op == Op::kDgrad ? g.C : g.K) + 7) / 8 * 8) {}
};

template <int kSubs>
bool AddBf16x6Subproblem(const Bf16x6Call& call, const Activations& in,
                         const Activations& out, const SubproblemAxes& axes,
                         Bf16x6Problem<kSubs>* p) {
  ConvSubproblem& sub = p->sub[p->subs];
  p->subs = p->subs + 1;
  SetAxes(axes, in, p->channel_blocks, &sub);
  return EncodeIm2col(&sub.input, Type::kTf32, call.lhs,
                      InputWalk(in, axes, call.plan.tile_m), kPlain);
}

template <int kSubs, typename Subproblems>
bool MakeBf16x6Problem(Op op, const Bf16x6Call& call, const Subproblems& subs,
                       Bf16x6Problem<kSubs>* p) {
  const ConvGeometry& g = call.g;
  const bool fprop = op == Op::kFprop;
  const Activations in = fprop ? InputOf(g) : OutputOf(g);
  const Activations out = fprop ? OutputOf(g) : InputOf(g);
  const FilterSizes sizes(op, g);
  const int64_t filter_bytes = Bf16x6FilterBytes(op, g);
  p->in = static_cast<const float*>(call.lhs);
  p->w = static_cast<const float*>(call.rhs);
  p->split = call.plan.split;
  p->k_slices = call.plan.k_slices;
  p->out = p->split ? reinterpret_cast<float*>(
                          static_cast<char*>(call.workspace) + filter_bytes)
                    : static_cast<float*>(call.result);
  p->k_slice_size = out.n * out.h * out.w * out.c;
  p->taps = static_cast<int>(g.taps());
  p->height = static_cast<int>(in.h);
  p->width = static_cast<int>(in.w);
  p->depth = static_cast<int>(in.c);
  p->out_height = static_cast<int>(out.h);
  p->out_width = static_cast<int>(out.w);
  p->w_channel = fprop ? 1 : g.K;
  p->w_depth = fprop ? g.K : 1;
  p->channels = static_cast<int>(out.c);
  p->channel_blocks = static_cast<int>(sizes.depth / kBf16x6Depth);
  p->filter_width = static_cast<int>(g.S);
  p->n_tiles =
      static_cast<int>((out.c + call.plan.tile_n - 1) / call.plan.tile_n);
  if (!EncodeTiled(&p->weights, Type::kBf16, call.workspace,
                   {sizes.width, sizes.depth, 3 * g.taps()},
                   {64, kBf16x6Depth, 1})) {
    return false;
  }
  int pixels = 0;
  for (const SubproblemAxes& sub : subs) {
    if (!AddBf16x6Subproblem(call, in, out, sub, p)) return false;
    pixels = std::max(pixels, p->sub[p->subs - 1].pixels);
  }
  const int m = call.plan.tile_m;
  p->tiles = (pixels + m - 1) / m * p->n_tiles * p->subs;
  return true;
}

template <bool kTurned>
cudaError_t CutFilter(Op op, const Bf16x6Call& call, Stage stage,
                      cudaStream_t stream) {
  const auto kernel = &Bf16x6FilterKernel<kTurned>;
  if (stage == Stage::kPrepare) {
    cudaFuncAttributes loads;
    return cudaFuncGetAttributes(&loads, kernel);
  }
  const ConvGeometry& g = call.g;
  const FilterSizes sizes(op, g);
  const Bf16x6FilterProblem p = {static_cast<const float*>(call.rhs),
                                 static_cast<__nv_bfloat16*>(call.workspace),
                                 static_cast<int>(g.taps()),
                                 static_cast<int>(g.C),
                                 static_cast<int>(g.K),
                                 static_cast<int>(sizes.depth),
                                 static_cast<int>(sizes.width)};
  const int64_t blocks =
      g.taps() * (sizes.depth / kBf16x6Depth) * ((sizes.width + 63) / 64);
  kernel<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(p);
  return cudaGetLastError();
}

template <typename Config, int kSubs>
cudaError_t LaunchBf16x6(const Bf16x6Problem<kSubs>& p, int blocks, Stage stage,
                         cudaStream_t stream) {
  const auto kernel = &Bf16x6ConvKernel<Config, kSubs>;
  const cudaError_t raised = RaiseSharedMemory(kernel, Config::kSharedBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  // Pixels are loaded while the filter is being cut.
  return LaunchKernel(
      kernel,
      {std::min(p.split ? p.tiles * p.k_slices : p.tiles, blocks), kThreads,
       Start::kEarly, Config::kSharedBytes},
      stream, p);
}

template <int kSubs, typename Subproblems>
cudaError_t RunBf16x6Conv(Op op, const Bf16x6Call& call,
                          const Subproblems& subs, Stage stage,
                          cudaStream_t stream) {
  Bf16x6Problem<kSubs> p{};
  if (!MakeBf16x6Problem(op, call, subs, &p)) return cudaErrorInvalidValue;
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if (m == 128 && n == 128) {
    return LaunchBf16x6<Bf16x6Config<128, 128, 5>>(p, call.plan.blocks, stage,
                                                   stream);
  }
  if (m == 256 && n == 64) {
    return LaunchBf16x6<Bf16x6Config<256, 64, 5>>(p, call.plan.blocks, stage,
                                                  stream);
  }
  if (m == 128 && n == 64) {
    return LaunchBf16x6<Bf16x6Config<128, 64, 7>>(p, call.plan.blocks, stage,
                                                  stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t RunBf16x6Wgrad(const Bf16x6Call& call, Stage stage,
                           cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const Plan plan{call.plan.tile_m, call.plan.tile_n, call.plan.blocks, 0};
  const ConvCall as_tf32{g,        Type::kTf32, plan,          call.lhs,
                         call.rhs, call.result, call.workspace};
  Bf16x6WgradProblem p{};
  if (!MakeWgradProblem(as_tf32, kPlain, &p)) return cudaErrorInvalidValue;
  p.x_data = static_cast<const float*>(call.lhs);
  p.dy_data = static_cast<const float*>(call.rhs);
  p.images = static_cast<int>(g.N);
  p.height = static_cast<int>(g.H);
  p.width = static_cast<int>(g.W);
  p.out_width = static_cast<int>(g.Q);
  p.pad_h = static_cast<int>(g.pad.h);
  p.pad_w = static_cast<int>(g.pad.w);
  auto launch = [&](auto config) {
    using Config = decltype(config);
    const auto kernel = &Bf16x6WgradKernel<Config>;
    const cudaError_t error = RaiseSharedMemory(kernel, Config::kSharedBytes);
    if (error != cudaSuccess) return error;
    const auto adds = &AddWgradPartialsBf16x6<Config>;
    if (stage == Stage::kPrepare) {
      cudaFuncAttributes loads;
      return cudaFuncGetAttributes(&loads, adds);
    }
    kernel<<<p.blocks, Config::kThreads, Config::kSharedBytes, stream>>>(p);
    if (p.tiles % p.blocks != 0) {
      adds<<<p.tiles * Config::kQuads, Config::kMultiplierThreads, 0, stream>>>(
          p);
    }
    return cudaGetLastError();
  };
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  if (m == 128 && n == 128) return launch(Bf16x6WgradConfig<128, 128, 4>());
  if (m == 256 && n == 64) return launch(Bf16x6WgradConfig<256, 64, 4>());
  if (m == kTapRowTile && n == 64) {
    return launch(Bf16x6WgradConfig<kTapRowTile, 64, 7, 3>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int64_t Bf16x6FilterBytes(Op op, const ConvGeometry& g) {
  if (op == Op::kWgrad) return 0;
  const FilterSizes sizes(op, g);
  return (6 * g.taps() * sizes.depth * sizes.width + 255) / 256 * 256;
}

cudaError_t RunBf16x6(Op op, const Bf16x6Call& call, Stage stage,
                      cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  if (op == Op::kWgrad) return RunBf16x6Wgrad(call, stage, stream);
  const cudaError_t error = op == Op::kFprop
                                ? CutFilter<false>(op, call, stage, stream)
                                : CutFilter<true>(op, call, stage, stream);
  if (error != cudaSuccess) return error;
  if (op == Op::kFprop) {
    const SubproblemAxes subs[] = {FpropSubproblem(g)};
    return RunBf16x6Conv<1>(op, call, subs, stage, stream);
  }
  return g.stride.h == 1 && g.stride.w == 1
             ? RunBf16x6Conv<1>(op, call, DgradSubproblems(g), stage, stream)
             : RunBf16x6Conv<kMaxSubproblems>(op, call, DgradSubproblems(g),
                                              stage, stream);
}

}  // namespace jax_convbatch::hopper
