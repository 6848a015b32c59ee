// SPDX-License-Identifier: Apache-2.0
// What the host tells the gathering kernels: the convolutions of conv_problem.h
// and wgrad_problem.h whose sizes or strides TMA cannot express.
#ifndef JAX_CONVBATCH_CUDA_SM90_PROBLEM_CP_ASYNC_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_SM90_PROBLEM_CP_ASYNC_PROBLEM_H_

#include <cstdint>

#include "cuda/common/fast_divmod.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Elements that shared memory takes at once, 16 bytes.
inline constexpr int kChunk = 8;

// A tensor that is read in boxes of rows x chunks.
struct CpAsyncSource {
  const uint16_t* data;
  int height;   // image rows
  int width;    // elements of an image row
  int vector;   // elements of a load: the alignment of all that is read
  bool masked;  // whether a load may hold elements that do not belong to it
};

// The reduction of a pixel: `count` runs of elements that lie together in the
// input, each rounded up to chunks. A run starts `lead` elements early, so that
// its loads are aligned. Where taps lie side by side, a run is a filter row.
struct CpAsyncRuns {
  int count, length, lead;
  FastDivmod<uint32_t> chunks, cols;  // chunks of a run; runs side by side
  int step_h, step_w;                 // image rows; elements
};

// Pixels in rows x cols an image, as the base pixels that they read from.
struct CpAsyncGrid {
  FastDivmod<uint32_t> rows, cols;
  int pixels;  // over all images
  int base_h, base_w, step_h, step_w;
};

// A sub-problem of conv_problem.h.
struct CpAsyncSubproblem {
  CpAsyncGrid grid;
  CpAsyncRuns runs;
  TapAxis taps_h, taps_w;
  int iterations;  // of 64 elements of the reduction
  int64_t output;  // element of the sub-problem's first pixel
};

struct CpAsyncConvProblem {
  CpAsyncSource input, weights;
  int input_channels;
  // Output element of (image, row, col, channel): these steps, and channels in
  // runs of `output_run`, which lie `output_run_step` apart.
  uint16_t* output;
  int64_t output_image, output_row, output_col;
  FastDivmod<uint32_t> output_run;
  int64_t output_run_step;
  int output_vector;
  int channels, n_tiles, tiles, subs;
  int filter_width;
  int weights_tap;  // elements of a tap's filter
  CpAsyncSubproblem sub[kMaxSubproblems];
};

// dw: filter rows (the chunks of the runs) by output channels, summed over
// pixels in `splits` partials of `steps_each` steps of 64.
struct CpAsyncWgradProblem {
  CpAsyncSource x, dy;
  int channels;  // of x
  CpAsyncGrid grid;
  CpAsyncRuns runs;
  void* dw;
  float* partials;
  int K, n_tiles, tiles;
  int steps, splits, steps_each;
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_PROBLEM_CP_ASYNC_PROBLEM_H_
