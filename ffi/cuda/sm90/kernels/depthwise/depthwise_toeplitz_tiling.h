// SPDX-License-Identifier: Apache-2.0
// The sizes of a tile of depthwise_toeplitz.cuh, which host and device share.
#pragma once

#include <cuda_runtime_api.h>

namespace jax_convbatch::direct {

// A tile is 16 kRowBlocks rows of 8 kRuns outputs, of as many channels as the
// block has warps. kSteps eights of inputs times a Toeplitz matrix are a run's
// products with one row of the filter, of up to 8 kSteps - 7 taps. kSequence:
// a row of outputs begins 32 steps after the one above it, and a row of the
// filter is 32 of its taps, so that the next one also begins a row below.
template <int kRowBlocks_, int kRuns_, int kSteps_, bool kSequence_>
struct ToeplitzTiling {
  static constexpr int kRowBlocks = kRowBlocks_, kRuns = kRuns_,
                       kSteps = kSteps_;
  static constexpr bool kSequence = kSequence_;
  static constexpr int kChannels = 8, kThreads = 32 * kChannels;
  static constexpr int kRows = 16 * kRowBlocks, kColumns = 8 * kRuns;

  // Of inputs that a row of outputs reads. Neighbours are in sequences one
  // row, which the first 32 of the next one continue.
  static constexpr int kReach = 8 * (kRuns + kSteps - 1);
  static constexpr int kInputColumns = kSequence ? 32 : kReach;
  // An odd number of sixteen bytes: ldmatrix reads eight rows at once.
  static constexpr int kPitch = kInputColumns + 4;
  // A filter's row lies between zeros.
  static constexpr int kTaps = 8 * kSteps + 8;
  static constexpr int kOutputPitch = kColumns + 8;
  static constexpr int kOutputPlane = kRows * kOutputPitch + 4;

  __host__ __device__ static constexpr int InputRows(int filter_rows) {
    return kRows + filter_rows - 1 + (kSequence ? 1 : 0);
  }
  // Floats of a channel. Four more than a multiple of eight: two threads with
  // four channels each store to other banks.
  __host__ __device__ static constexpr int InputPlane(int filter_rows) {
    return InputRows(filter_rows) * kPitch / 8 * 8 + 12;
  }
  __host__ __device__ static constexpr int FilterPlane(int filter_rows) {
    return filter_rows * kTaps + 4;
  }
  // Outputs on their way out lie where inputs were.
  __host__ __device__ static constexpr int SharedBytes(int filter_rows) {
    const int plane = InputPlane(filter_rows);
    return 4 * kChannels *
           ((plane > kOutputPlane ? plane : kOutputPlane) +
            FilterPlane(filter_rows));
  }
};

}  // namespace jax_convbatch::direct
