// SPDX-License-Identifier: Apache-2.0
// How rows and channels are shared among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "causal_conv1d_call.h"

namespace jax_convbatch::causal {

inline constexpr int kThreads = 128;

// Rows that are a dilation apart are a sequence of their own, which a thread
// walks along: of each row it reads once what all taps need. A thread has a
// chunk of such a sequence and one vector of channels; a block has `lanes`
// vectors side by side, and a chunk for each of its teams.
struct Tasks {
  int lanes, teams;
  int64_t columns;  // vectors of channels
  int64_t tiles;    // of `lanes` of them
  int64_t chunk;    // rows, a multiple of the gradient's turn
  int64_t chunks;   // of a sequence
  int64_t groups;   // of chunks, of all samples of a set of weights

  int64_t blocks(int64_t G) const { return G * groups * tiles; }
  // Whether kernels can count them in 32 bits.
  bool fits(int64_t G) const {
    return blocks(G) <= INT32_MAX && groups * teams <= INT32_MAX;
  }
};

// Rows that a thread takes in turn, at least `least`: a multiple of the taps,
// so that a row has the same registers in every turn.
template <int kTaps, int kLeast>
struct Turn {
  static constexpr int kRows = (kLeast + kTaps - 1) / kTaps * kTaps;
};

inline constexpr int kGradRows = 3;

// Blocks that there are to be, if the arrays are large enough. An H200 holds
// some 512 at a time. The gradient pays for each block: one wave of them was
// fastest. They do not depend on the GPU, so that sums of partial sums do not.
inline constexpr int64_t kFpropBlocks = 2048, kGradBlocks = 512;

inline Tasks TasksOf(const CausalConv1d& call, int vector, int64_t blocks) {
  constexpr int64_t kLeast = 16, kMost = 512;
  Tasks tasks;
  tasks.columns = call.C / vector;
  tasks.lanes = 1;
  while (tasks.lanes < 32 && tasks.lanes < tasks.columns) tasks.lanes *= 2;
  tasks.teams = kThreads / tasks.lanes;
  tasks.tiles = (tasks.columns + tasks.lanes - 1) / tasks.lanes;
  const int64_t rows = (call.L + call.dilation - 1) / call.dilation;
  const int64_t sequences = call.n * std::min(call.dilation, call.L);
  const int64_t all = call.G * sequences * tasks.tiles * rows;
  const int64_t chunk = all / (blocks * tasks.teams);
  const int64_t turn = (kGradRows + call.taps - 1) / call.taps * call.taps;
  tasks.chunk = std::clamp(chunk, kLeast, kMost) / turn * turn;
  tasks.chunks = (rows + tasks.chunk - 1) / tasks.chunk;
  tasks.groups = (sequences * tasks.chunks + tasks.teams - 1) / tasks.teams;
  return tasks;
}

// Channels that the gradient's threads have each.
inline int GradVector(const CausalConv1d& call) {
  const int vector = call.taps > 4 ? 2 : 4;
  return call.C % vector == 0 ? vector : 1;
}

}  // namespace jax_convbatch::causal
