// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "cuda/common/most_shared.h"
#include "cuda/sm90/arch/launch.cuh"
#include "cuda/sm90/kernels/narrow_groups/group_tf32.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_kernel.cuh"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {
namespace {

// Every `step_h`-th row and `step_w`-th column of a tensor, from (h, w) on, by
// boxes of rows x cols pixels. False where the driver refuses.
bool EncodeClass(CUtensorMap* map, const ConvCall& call, const void* data,
                 const Activations& of, int line_groups, int64_t h, int64_t w,
                 int step_h, int step_w, int rows, int cols, Copy copy) {
  const int64_t groups = line_groups > 1 ? 1 : call.g.groups;
  const int64_t c = of.c / groups;
  return EncodeStrided(
      map, call.type, static_cast<const float*>(data) + (h * of.w + w) * of.c,
      {c, groups, (of.w - w + step_w - 1) / step_w,
       (of.h - h + step_h - 1) / step_h, of.n},
      {c, of.c * step_w, of.w * of.c * step_h, of.h * of.w * of.c},
      {kGroupLine, 1, cols, rows, 1}, copy);
}

// False where the kernel cannot run it or the driver refuses.
bool MakeProblem(const ConvCall& call, bool dgrad, GroupTf32Problem* problem) {
  const ConvGeometry& g = call.g;
  const auto tiling = TileGroupTf32(g, dgrad, call.plan.tile_m / 64);
  if (!tiling) return false;
  const Activations in = dgrad ? OutputOf(g) : InputOf(g);
  const Activations out = dgrad ? InputOf(g) : OutputOf(g);
  const auto subs =
      dgrad ? DgradSubproblems(g) : std::vector{FpropSubproblem(g)};
  const GroupReach h = ReachOf(subs, &SubproblemAxes::h);
  const GroupReach w = ReachOf(subs, &SubproblemAxes::w);
  const int line_groups = GroupsOfLine(g);
  problem->tiling = *tiling;
  problem->filter = static_cast<const float*>(call.rhs);
  problem->is_dgrad = dgrad;
  problem->groups = static_cast<int>(g.groups);
  problem->inputs = static_cast<int>(in.c / g.groups);
  problem->outputs = static_cast<int>(out.c / g.groups);
  problem->all_outputs = static_cast<int>(g.K);
  problem->eights = (problem->inputs + 7) / 8;
  problem->lines = static_cast<int>(GroupLines(g));
  problem->per_image = tiling->tiles;
  problem->tiles = static_cast<int>(out.n * tiling->tiles);
  problem->reciprocal = (65536 + tiling->width - 1) / tiling->width;
  problem->tap_pixels = subs[0].w.taps.offset_step;
  problem->input_h = h.low;
  problem->input_w = w.low;
  problem->input_classes = h.step * w.step;
  problem->output_classes = static_cast<int>(subs.size());
  for (int i = 0; i < problem->input_classes; ++i) {
    if (!EncodeClass(&problem->input[i], call, call.lhs, in, line_groups,
                     i / w.step, i % w.step, h.step, w.step, tiling->box_rows,
                     tiling->width, Copy::kLoad)) {
      return false;
    }
  }
  int count = 0;
  for (int i = 0; i < problem->output_classes; ++i) {
    const SubproblemAxis &ph = subs[i].h, &pw = subs[i].w;
    if (!EncodeClass(&problem->output[i], call, call.result, out, line_groups,
                     ph.output, pw.output, ph.output_step, pw.output_step,
                     tiling->rows, tiling->cols, Copy::kStore)) {
      return false;
    }
    for (int r = 0; r < ph.taps.count; ++r) {
      for (int s = 0; s < pw.taps.count; ++s) {
        // Where the tap reads: a residue class, and a place in its box.
        const int64_t at_h = ph.input + int64_t{r} * ph.taps.offset_step -
                             int64_t{h.low} * h.step;
        const int64_t at_w = pw.input + int64_t{s} * pw.taps.offset_step -
                             int64_t{w.low} * w.step;
        const int64_t of_class = at_h % h.step * w.step + at_w % w.step;
        const int64_t pixel = at_h / h.step * tiling->width + at_w / w.step;
        const int tap =
            (ph.taps.tap + r * ph.taps.tap_step) * static_cast<int>(g.S) +
            pw.taps.tap + s * pw.taps.tap_step;
        problem->taps[count++] = {
            static_cast<int32_t>(
                (of_class * tiling->class_bytes + pixel * 128) >> 4),
            tap};
      }
    }
    problem->taps_end[i] = count;
  }
  problem->taps_count = count;
  return true;
}

template <typename Config>
cudaError_t Launch(const GroupTf32Problem& problem, int blocks, Stage stage,
                   cudaStream_t stream) {
  const auto kernel = &GroupTf32Kernel<Config>;
  // To one limit: threads may launch the kernel for several geometries at once.
  const cudaError_t raised = RaiseSharedMemory(kernel, kMostShared);
  if (raised != cudaSuccess || stage == Stage::kPrepare) return raised;
  const GroupTiling& tiling = problem.tiling;
  const int bytes = tiling.stages * problem.input_classes * tiling.class_bytes +
                    kConsumers * Config::kOutBytes +
                    problem.taps_count * Config::kTapBytes +
                    static_cast<int>(sizeof(GroupTf32Barriers));
  // Two blocks of an SM need tiles for the warpgroups of both. As many blocks
  // for each line, where that leaves few without work: a line's filter is what
  // a block waits for longest.
  const int64_t tiles = int64_t{problem.lines} * problem.tiles;
  const int64_t both = int64_t{blocks} * tiling.resident;
  if (tiles >= kConsumers * both) blocks = static_cast<int>(both);
  if (const int left = blocks % problem.lines; 16 * left <= blocks) {
    blocks -= left;
  }
  kernel<<<static_cast<int>(std::min<int64_t>(tiles, blocks)), kThreads, bytes,
           stream>>>(problem);
  return cudaGetLastError();
}

template <int kN, int kGroups, int kBlocks>
cudaError_t Run(const GroupTf32Problem& problem, int blocks, Stage stage,
                cudaStream_t stream) {
  return problem.tiling.shares
             ? Launch<GroupTf32Config<kN, kGroups, kBlocks, kSharedTaps>>(
                   problem, blocks, stage, stream)
             : Launch<GroupTf32Config<kN, kGroups, kBlocks, 1>>(problem, blocks,
                                                                stage, stream);
}

template <int kN, int kGroups>
cudaError_t Run(const GroupTf32Problem& problem, int blocks, Stage stage,
                cudaStream_t stream) {
  switch (problem.tiling.blocks) {
    case 1:
      return Run<kN, kGroups, 1>(problem, blocks, stage, stream);
    case 2:
      return Run<kN, kGroups, 2>(problem, blocks, stage, stream);
    case 3:
      return Run<kN, kGroups, 3>(problem, blocks, stage, stream);
    default:
      return Run<kN, kGroups, 4>(problem, blocks, stage, stream);
  }
}

}  // namespace

cudaError_t RunGroupTf32(const ConvCall& call, bool dgrad, Stage stage,
                         cudaStream_t stream) {
  GroupTf32Problem problem{};
  if (!MakeProblem(call, dgrad, &problem)) return cudaErrorInvalidValue;
  auto run = [&](auto n, auto groups) {
    return Run<n, groups>(problem, call.plan.blocks, stage, stream);
  };
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 8> kEight;
  constexpr std::integral_constant<int, 16> kSixteen;
  if (GroupsOfLine(call.g) == 4) {
    return run(kEight, std::integral_constant<int, 4>());
  }
  if (GroupsOfLine(call.g) == 2) {
    return run(kSixteen, std::integral_constant<int, 2>());
  }
  switch (GroupColumns(problem.outputs)) {
    case 8:
      return run(kEight, kOne);
    case 16:
      return run(kSixteen, kOne);
    case 24:
      return run(std::integral_constant<int, 24>(), kOne);
    default:
      return run(std::integral_constant<int, 32>(), kOne);
  }
}

}  // namespace jax_convbatch::hopper
