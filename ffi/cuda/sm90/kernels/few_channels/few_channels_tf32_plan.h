// SPDX-License-Identifier: Apache-2.0
// f32 convolutions of few input channels: which few_channels_tf32.cuh and
// few_channels_tf32_wgrad.cuh run. Host only.
#pragma once

#include <optional>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// fprop, or dgrad of stride 1 as the convolution of dy that it is.
struct FewChannelsTf32Shape {
  FewChannelsTf32Shape(const ConvGeometry& g, bool dgrad);

  // The same with tiles of so many outputs.
  void SetTile(int64_t tile_rows, int64_t tile_cols);

  int64_t n, in_h, in_w, in_c, out_h, out_w, out_c;
  int64_t taps_h, taps_w, stride_h, stride_w, pad_h, pad_w;
  int64_t dilation_h, dilation_w;
  int steps;           // of the kernel: eights of a sum, 0 where there is none
  int64_t rows, cols;  // outputs of a tile
  int64_t band, strip_row;  // floats of its inputs, and of a row of them

  int64_t down() const { return (out_h + rows - 1) / rows; }
  int64_t across() const { return (out_w + cols - 1) / cols; }
  int64_t tiles() const { return n * down() * across(); }
  int64_t shares() const;  // blocks that share a tile's output channels
  int64_t shared_bytes() const { return 2 * 4 * band; }
};

// For geometries of FitsIn32Bits; nothing where the kernel cannot run.
std::optional<Plan> PlanFewChannelsTf32(const ConvGeometry& g, bool dgrad,
                                        int multiprocessors);

// The same of wgrad.
std::optional<Plan> PlanFewChannelsTf32Wgrad(const ConvGeometry& g,
                                             int multiprocessors);

// wgrad's tiles, as large as shared memory has room for two.
FewChannelsTf32Shape FewChannelsTf32WgradShape(const ConvGeometry& g);

// Bytes of two tiles of wgrad: 64 channels of dy, whose lines are swizzled by
// KiB, then their inputs.
inline int64_t FewChannelsTf32WgradBytes(const FewChannelsTf32Shape& shape) {
  return 2 * ((4 * (shape.band + shape.rows * shape.cols * 64) + 1023) / 1024 *
              1024);
}

// The kernels of a plan of the path kFewChannels for f32; see conv.h.
cudaError_t FewChannelsTf32(const ConvCall& call, bool dgrad, Stage stage,
                            cudaStream_t stream);
cudaError_t FewChannelsTf32Wgrad(const ConvCall& call, Stage stage,
                                 cudaStream_t stream);

}  // namespace jax_convbatch::hopper
