// SPDX-License-Identifier: Apache-2.0
// Which tiles fprop and dgrad of few outputs have: one a block, all at once
// (single_wave_kernel.cuh). Host only.
#pragma once

#include <vector>

#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

struct SingleWaveSize {
  int pixels, channels;
};

// Of 16-bit types.
inline constexpr SingleWaveSize kSingleWaveTiles[] = {
    {32, 64}, {48, 64},  {48, 128},  {56, 64},  {56, 128},
    {96, 64}, {104, 64}, {104, 128}, {192, 64}, {192, 128}};
inline constexpr int kMaxSingleWaveSubproblems = 4;  // of a stride
// Where sums come in K slices, of which the blocks of a cluster form one each
// (single_wave_split_k_kernel.cuh): of images of 7x7 pixels, and two of 8x8.
inline constexpr SingleWaveSize kSplitKTiles[] = {
    {56, 64}, {104, 64}, {56, 128}, {104, 128}, {136, 128}};

// Whether the kernels can run the sub-problems, of one group: of a stride's
// the first alone has taps.
bool TakesSingleWave(const std::vector<SubproblemAxes>& subs);

// Where sums come in K slices, each tile a cluster's if all of them run at
// once: a plan of single_wave_split_k_kernel.cuh where it is faster than
// `plan`.
Plan OrCluster(const Plan& plan, const Activations& in, const Activations& out,
               const std::vector<SubproblemAxes>& subs, int multiprocessors);

// Whether kernels of a plain epilogue alone run fprop in 16 bits: those of all
// tiles but for K slices.
inline bool HasPlainKernels(const ConvGeometry& g, const Epilogue& epilogue) {
  return epilogue.is_plain() &&
         !SumsInKSlices(InputOf(g), OutputOf(g), FpropSubproblem(g));
}

// What runs a call with an epilogue: a plan of fprop, or if its kernel does not
// have it or is slow with it, another with the same bits. It takes microseconds
// to choose (select/conv_plan.cc).
Plan WithEpilogue(const ConvGeometry& g, Type type, const Plan& plan,
                  const Epilogue& epilogue);

}  // namespace jax_convbatch::hopper
