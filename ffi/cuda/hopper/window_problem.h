// What the host tells the window kernel, which takes fprop and dgrad at stride
// 1 of up to 64 channels on either side. In fprop's words, as conv_problem.h.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WINDOW_PROBLEM_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WINDOW_PROBLEM_H_

#include <cuda.h>

#include <cstdint>

#include "cuda/hopper/tap_axis.h"

namespace jax_convbatch::hopper {

// Pixels of a product, among them those that are no output's.
inline constexpr int kWindowPixels = 232;
inline constexpr int kWindowChannels = 64;
inline constexpr int kMaxWindowTaps = 9;
inline constexpr int kMaxWindowStages = 4;

// A tile is `rows` rows of `cols` outputs of one image. All that they read is
// one box of rows of `width` pixels: the product takes its pixels as they
// follow each other there, with those between the ends of two rows.
struct WindowTiling {
  int rows, cols, width;
  int box_rows;
  int groups;       // tiles of an image
  int stage_bytes;  // the box and what a product reads behind it
  int stages;
};

struct WindowProblem {
  CUtensorMap input;    // box_rows x width pixels a box
  CUtensorMap weights;  // [taps, C, K], 64 x 64 a box
  CUtensorMap output;   // rows x cols pixels a box
  TapAxis taps_h, taps_w;
  WindowTiling tiling;
  int filter_width;      // S
  int input_h, input_w;  // of the first output's first tap
  int height, channels;  // of the output
  int tiles;
  int reciprocal;  // of width, in 2^-16
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WINDOW_PROBLEM_H_
