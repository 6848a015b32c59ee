// SPDX-License-Identifier: Apache-2.0
// Builds a ConvProblem from its sub-problems and launches the kernel of a plan.
#pragma once

#include <algorithm>

#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/conv/conv_kernel.cuh"
#include "cuda/sm90/kernels/conv/conv_split_k_kernel.cuh"
#include "cuda/sm90/kernels/conv/resident_plan.h"
#include "cuda/sm90/kernels/conv/residue_k_plan.h"
#include "cuda/sm90/kernels/conv/residue_n_plan.h"
#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/conv_subproblem_axes.h"
#include "cuda/sm90/problem/group_width.h"
#include "cuda/sm90/problem/k_slices.h"
#include "cuda/sm90/problem/subproblems.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

// What a kernel copies at a time: pixels it loads, pixels it stores, and input
// channels of the filter, each by 128 bytes.
struct ConvBoxes {
  int load_pixels, store_pixels, filter_channels;
  Output output;
  bool half_filter = false;  // by 64 bytes
};

// The map of what a sub-problem reads, in boxes of so many pixels.
inline bool EncodeInput(CUtensorMap* map, const ConvCall& call,
                        const Activations& in, const SubproblemAxes& axes,
                        int pixels) {
  return Is3d(call.g)
             ? Encode3dIm2col(map, call.type, call.lhs,
                              InputWalk3d(in, axes, pixels), Copy::kLoad)
             : EncodeIm2col(map, call.type, call.lhs,
                            InputWalk(in, axes, pixels, MapGroups(call.g)));
}

// Adds a sub-problem of what `call` computes to a problem whose other members
// are set. False where the driver refuses.
template <int kSubs>
bool AddSubproblem(const ConvCall& call, const Activations& in,
                   const Activations& out, const SubproblemAxes& axes,
                   const ConvBoxes& boxes, ConvProblem<kSubs>* problem) {
  ConvSubproblem& sub = problem->sub[problem->subs];
  problem->subs = problem->subs + 1;
  SetAxes(axes, in, problem->channel_blocks, &sub);
  if (!EncodeInput(&sub.input, call, in, axes, boxes.load_pixels)) return false;
  const int channels = 128 / ElementBytes(call.type);
  switch (boxes.output) {
    case Output::kMatrix:
      if (IsResidueNTile(call.plan)) {
        return EncodeHalfLines(&sub.output, call.type, call.result,
                               {out.c, sub.pixels}, {32, boxes.store_pixels},
                               Copy::kStore);
      }
      if (const int64_t groups = MapGroups(call.g); groups > 1) {
        return EncodeStrided(&sub.output, call.type, call.result,
                             {out.c / groups, groups, sub.pixels},
                             {out.c / groups, out.c},
                             {channels, 1, boxes.store_pixels}, Copy::kStore);
      }
      return EncodeTiled(&sub.output, call.type, call.result,
                         {out.c, sub.pixels}, {channels, boxes.store_pixels},
                         Copy::kStore);
    case Output::kThreads:
      sub.output_data = call.result;
      return true;
    case Output::kPartials:
      return EncodeTiled(&sub.output, call.type, call.workspace,
                         {out.c, sub.pixels, call.plan.k_slices},
                         {channels, boxes.store_pixels, 1}, Copy::kStore);
    default:
      if (Is3d(call.g)) {
        return Encode3dIm2col(&sub.output, call.type, call.result,
                              OutputWalk3d(out, axes, boxes.store_pixels),
                              Copy::kStore);
      }
      const int64_t groups = MapGroups(call.g);
      const int pixels = groups > 1
                             ? GroupStorePixels(sub.pixels, boxes.store_pixels)
                             : boxes.store_pixels;
      return EncodeIm2col(&sub.output, call.type, call.result,
                          OutputWalk(out, axes, pixels, groups), Copy::kStore);
  }
}

// False where the driver refuses.
template <int kSubs, typename Subproblems>
bool MakeConvProblem(const ConvCall& call, const Activations& in,
                     const Activations& out, const Subproblems& subs,
                     const ConvBoxes& boxes, ConvProblem<kSubs>* problem) {
  const ConvGeometry& g = call.g;
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  const int block = 128 / ElementBytes(call.type);
  const int64_t units = GroupUnits(g), of_maps = MapGroups(g);
  const int64_t inputs = UnitChannels(g, in.c);
  const int64_t outputs = UnitChannels(g, out.c);
  problem->channels = static_cast<int>(out.c / of_maps);
  problem->channel_blocks = static_cast<int>((inputs + block - 1) / block);
  problem->filter_width = static_cast<int>(g.S);
  problem->slice_taps = static_cast<int>(g.R * g.S);
  problem->volumes = Is3d(g);
  problem->group_tiles = static_cast<int>((outputs + n - 1) / n);
  problem->group_inputs = static_cast<int>(inputs);
  problem->n_tiles = static_cast<int>(units * problem->group_tiles);
  const bool weights =
      of_maps > 1
          ? EncodeStrided(&problem->weights, call.type, call.rhs,
                          {g.group_K(), g.groups, g.group_C(), g.taps()},
                          {g.group_K(), g.K, g.group_C() * g.K},
                          {block, 1, boxes.filter_channels, 1})
      : boxes.half_filter
          ? EncodeHalfLines(&problem->weights, call.type, call.rhs,
                            {g.K, g.C, g.taps()},
                            {32, boxes.filter_channels, 1}, Copy::kLoad)
          : EncodeTiled(&problem->weights, call.type, call.rhs,
                        {g.K, g.group_C(), g.taps()},
                        {block, boxes.filter_channels, 1});
  if (!weights) return false;
  int pixels = 0;
  for (const SubproblemAxes& sub : subs) {
    if (!AddSubproblem(call, in, out, sub, boxes, problem)) return false;
    pixels = std::max(pixels, problem->sub[problem->subs - 1].pixels);
  }
  problem->tiles = (pixels + m - 1) / m * problem->n_tiles * problem->subs;
  return true;
}

// The maps of stages of so many channels; `filter` as in ConvBoxes. False where
// the driver refuses.
template <Contiguous kWeights>
bool MakeResidueK(const ConvCall& call, const Activations& in,
                  const SubproblemAxes& axes, int filter_channels, int channels,
                  int block, ConvResidueK* residue_k) {
  residue_k->channels = channels;
  residue_k->block = block;
  const ConvGeometry& g = call.g;
  const int pixels = call.plan.tile_m;
  const bool encoded =
      Is3d(g) ? EncodeNarrow3dIm2col(&residue_k->input, call.type, call.lhs,
                                     InputWalk3d(in, axes, pixels), channels)
              : EncodeNarrowIm2col(&residue_k->input, call.type, call.lhs,
                                   InputWalk(in, axes, pixels), channels);
  if (!encoded) return false;
  const std::initializer_list<int64_t> sizes = {g.K, g.C, g.taps()};
  if (kWeights == Contiguous::kRows) {
    return IsResidueNTile(call.plan) && !HasWholeBoxes(g, call.plan)
               ? EncodeHalfLines(&residue_k->weights, call.type, call.rhs,
                                 sizes, {32, channels, 1}, Copy::kLoad)
               : EncodeTiled(&residue_k->weights, call.type, call.rhs, sizes,
                             {64, channels, 1});
  }
  return channels == 32
             ? EncodeHalfLines(&residue_k->weights, call.type, call.rhs, sizes,
                               {channels, filter_channels, 1}, Copy::kLoad)
             : EncodeQuarterLines(&residue_k->weights, call.type, call.rhs,
                                  sizes, {channels, filter_channels, 1});
}

template <typename Config, int kSubs, typename EpilogueT>
cudaError_t LaunchConv(const ProblemOf<Config, kSubs, EpilogueT>& problem,
                       const EpilogueT& epilogue, int blocks, Stage stage,
                       cudaStream_t stream) {
  const auto kernel = &ConvKernel<Config, kSubs, EpilogueT>;
  const cudaError_t raised =
      RaiseSharedMemory(kernel, ConvShared<Config>::kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  // Every tile of a block has the same channels.
  if (Config::kResident > 0) blocks -= blocks % int(problem.n_tiles);
  constexpr int kBytes = ConvShared<Config>::kBytes;
  kernel<<<std::min(problem.tiles, blocks), kThreads, kBytes, stream>>>(
      problem, epilogue);
  return cudaGetLastError();
}

inline ConvKSlices MakeKSlices(const ConvSubproblem& sub, int count) {
  const int rows = sub.taps_h.count, cols = sub.taps_w.count;
  const int taps = sub.taps_d.count * rows * cols;
  ConvKSlices k_slices{};
  for (int i = 0; i < count; ++i) {
    const int begin = KSliceBegin(sub.iterations, i, count);
    const int tap = begin % taps;
    k_slices.k_slice[i] = {tap / cols % rows, tap % cols, tap / cols / rows,
                           begin / taps,
                           KSliceBegin(sub.iterations, i + 1, count) - begin};
  }
  return k_slices;
}

template <typename Config, typename EpilogueT>
cudaError_t LaunchSplit(const ConvProblem<1>& problem,
                        const EpilogueT& epilogue, Stage stage,
                        cudaStream_t stream) {
  const auto kernel = &ConvSplitKKernel<Config, EpilogueT>;
  constexpr int kBytes = Config::kBarrierOffset + sizeof(SplitBarriers<Config>);
  const cudaError_t raised = RaiseSharedMemory(kernel, kBytes);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  return LaunchKernel(kernel,
                      {int64_t{kSumKSlices} * problem.tiles, Config::kThreads,
                       Start::kInOrder, kBytes, kSumKSlices},
                      stream, problem, MakeKSlices(problem.sub[0], kSumKSlices),
                      epilogue);
}

// The filter is copied in boxes of box_c input channels.
template <typename T, Contiguous kWeights, int kSubs, typename Subproblems,
          typename EpilogueT = NoEpilogue>
cudaError_t RunConv(const ConvCall& call, const Activations& in,
                    const Activations& out, const Subproblems& subs, int box_c,
                    Stage stage, cudaStream_t stream,
                    const EpilogueT& epilogue = {}) {
  // Of a kernel that has no tails, what it is given of this has none either.
  std::conditional_t<kSubs == 1, ResidueKProblem, ConvProblem<kSubs>> problem{};
  const ConvBoxes boxes = {
      call.plan.tile_m, 64, box_c, kSubs > 1 ? Output::kWalk : Output::kMatrix,
      kWeights == Contiguous::kRows && IsResidueNTile(call.plan) &&
          !HasWholeBoxes(call.g, call.plan)};
  if (!MakeConvProblem(call, in, out, subs, boxes, &problem)) {
    return cudaErrorInvalidValue;
  }
  if constexpr (kSubs == 1 && (EpilogueT::kPlain || !EpilogueT::kPresent)) {
    const int tail = ResidueKChannels(in.c);
    if (tail > 0 && !MakeResidueK<kWeights>(call, in, subs[0], box_c, tail,
                                            problem.channel_blocks - 1,
                                            &problem.residue_k)) {
      return cudaErrorInvalidValue;
    }
  }
  const int m = call.plan.tile_m, n = call.plan.tile_n;
  const bool zeros = std::any_of(
      problem.sub, problem.sub + problem.subs,
      [](const ConvSubproblem& sub) { return sub.iterations == 0; });

  if (kSubs > 1 && !zeros &&
      LongestFirst(problem.tiles, problem.sub[0].iterations,
                   call.plan.blocks)) {
    problem.sub_tiles = problem.tiles / int(problem.subs);
  }
  auto launch = [&](auto config) {
    return LaunchConv<decltype(config), kSubs>(problem, epilogue,
                                               call.plan.blocks, stage, stream);
  };
  // Stages and store buffers: what fits in shared memory.
  constexpr Schedule kPingPong = Schedule::kPingPong,
                     kCooperative = Schedule::kCooperative;
  constexpr bool kZeros = kSubs > 1;
  constexpr int kStores = kZeros ? 1 : 2;
  // K slices are never summed for a plain epilogue alone.
  if constexpr (kSubs == 1 && !EpilogueT::kPlain) {
    if (SumsInKSlices(in, out, subs[0])) {
      if (m == 64 && n == 64) {
        return launch(
            InKSlices<
                ConvConfig<T, 64, 64, kPingPong, 12, 2, false, kWeights>>());
      }
      if (m == 64 && n == 128) {
        // One round of clusters is faster than blocks that are half as many.
        return kSumKSlices * problem.tiles <= call.plan.blocks
                   ? LaunchSplit<SplitConfig<T, kWeights>>(problem, epilogue,
                                                           stage, stream)
                   : launch(InKSlices<ConvConfig<T, 64, 128, kPingPong, 8, 2,
                                                 false, kWeights>>());
      }
      return m == 128 && n == 128
                 ? launch(LargeInKSlices<T, kWeights, EpilogueT::kPresent>())
                 : cudaErrorInvalidValue;
    }
  }
  if (m == 64 && n == 64) {
    return launch(ConvConfig<T, 64, 64, kPingPong, 12, 2, kZeros, kWeights>());
  }
  if (m == 64 && n == 128) {
    if constexpr (kSubs == 1) {
      // Small sums: a tile's weights would be most of what it copies.
      if (call.g.taps() == 1 && HasResidentTiles(in.c, out.c) &&
          HasResidentTilesEnough(problem.tiles, call.plan.blocks) &&
          problem.n_tiles <= call.plan.blocks) {
        return launch(ConvConfig<T, 64, 128, kPingPong, 8, 4, false, kWeights,
                                 kResidentStages>());
      }
    }
    return launch(
        ConvConfig<T, 64, 128, kPingPong, 8, kStores, kZeros, kWeights>());
  }
  // Sums are all the registers there are: no epilogue has a place.
  if constexpr (kSubs == 1 && !EpilogueT::kPresent && !EpilogueT::kPlain) {
    if (m == 128 && n == kBareWidth) {
      return launch(
          ConvConfig<T, 128, kBareWidth, kPingPong, 4, 1, false, kWeights>());
    }
  }
  // Odd widths, and 64x256, have a plain epilogue alone.
  if constexpr (kSubs == 1 && (EpilogueT::kPlain || !EpilogueT::kPresent)) {
    if (m == 64 && n == 256) {
      return launch(ConvConfig<T, 64, 256, kPingPong, 8, 2, false, kWeights,
                               kWideResidentStages>());
    }
    if (m == 128 && n == 160) {
      if constexpr (kWeights == Contiguous::kRows) {
        if (HasWholeBoxes(call.g, call.plan)) return launch(InWholeBoxes<T>());
      }
      return launch(
          ConvConfig<T, 128, 160, kPingPong, 5, 1, false, kWeights>());
    }
    if (m == 256 && n == 96) {
      return launch(ConvConfig<T, 256, 96, kPingPong, 4, 1, false, kWeights>());
    }
    if (m == 128 && n == 96) {
      return launch(ConvConfig<T, 128, 96, kPingPong, 6, 2, false, kWeights>());
    }
    if (m == 256 && n == 32) {
      return launch(ConvConfig<T, 256, 32, kPingPong, 5, 2, false, kWeights>());
    }
    if (m == 128 && n == 32) {
      return launch(ConvConfig<T, 128, 32, kPingPong, 9, 2, false, kWeights>());
    }
  }
  if (m == 256 && n == 64) {
    return launch(
        ConvConfig<T, 256, 64, kPingPong, 4, kStores, kZeros, kWeights>());
  }
  if (m == 128 && n == 256) {
    return launch(
        ConvConfig<T, 128, 256, kCooperative, 3, 1, kZeros, kWeights>());
  }
  if (m == 128 && n == 128) {
    if constexpr (kZeros) {
      if (zeros) {
        return launch(
            ConvConfig<T, 128, 128, kPingPong, 5, 1, true, kWeights>());
      }
    }
    // The short sums of a stride's classes wait for their stores.
    constexpr int kBuffers = EpilogueT::kOverlaps || kSubs > 1 ? 2 : 1;
    return launch(ConvConfig<T, 128, 128, kPingPong, 7 - kBuffers, kBuffers,
                             false, kWeights>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_convbatch::hopper
