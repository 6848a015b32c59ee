// SPDX-License-Identifier: Apache-2.0
// Which of the configurations that cuDNN's heuristics recommend go first. What
// is said of engines, by the numbers that cuDNN 9 gives them, was measured on
// an H100 (tests/test_cudnn_bits.py).
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/cudnn/config.h"
#include "cuda/cudnn/graph.h"

namespace jax_convbatch::cudnn {

// Whether two configurations add the products of a sum in the same order. On
// Hopper tiles of other sizes and clusters of other shapes do, as long as a
// step of the reduction is as long; elsewhere nobody has looked.
bool SameBits(const Config& a, const Config& b);

// Which of some configurations of the same bits goes first: the heuristics'
// first, unless another is cheaper. 17x90x80 of 192 channels in f32 takes them
// 875 us by tiles of 128 columns, 628 by those of 192; 3x128x320 of 96 683 by
// those of 32, 230 by those of 128 (3x3x3; H100).
size_t Cheapest(const Problem& problem,
                const std::vector<Recommendation>& same);

// Whether it has kernels of the same bits for batches of every size, where
// those without any are no faster: of 16 bits or of 32 and more channels.
bool HasOthers(const Problem& problem, const Config& config);

// Whether it is an engine that is recommended for few channels, and is slow for
// more than a few products. Engine 0, without tensor cores and shared memory,
// does 0.6 TFLOP/s where others do 10 and more. fprop's 28, true f32 in shared
// memory, takes up to twice as long as the kernels of TF32 for few channels
// (8x240000 1->32, 7 taps: 350 us, 176; H100), which copy x and have three
// launches, so that it is ahead for small images.
bool IsSlow(const Problem& problem, const Config& config);

// A 1x1 filter as a product of matrices: the kernel is chosen inside, by the
// number of pixels. For 16 bits all of them add in the same order.
bool IsMatmul(const Config& config);

// Whether it is a 1x1 convolution in 16 bits and no layer. For these, engines
// of IsMatmul are the fastest, if they are listed.
bool IsHalfProduct(const Problem& problem);

// Whether no sum is cut, since where it is depends on the number of all tiles,
// and so on the batch. Engines with a knob for it may keep parts of sums in the
// workspace (stream-K) unless it is 1; up to 4 KiB are counters. What others
// have there is x, w or y in another layout.
bool AddsWhole(const Problem& problem, const Recommendation& found);

// Whether wgrad's tiles of TMA kernels are 64x64 where there is more of both
// channels: the heuristics take those up to 1.4 times as long as tiles of
// 128x64 in clusters of 1x8 (12x48x48 96->192 3x3x3 s2 in bf16, batch 2: 33
// us, 23; H100).
bool IsSmallForWgrad(const Problem& problem, const Config& config);

// Whether wgrad takes it after all others: an engine that is slow, or clusters
// of sixteen tiles, for which a GPU has little room (65536 steps of 1152
// channels, 5 taps, in bf16, batch 2: 3429 us, others 2686 and more; H200).
bool IsLastForWgrad(const Problem& problem, const Config& config);

// Of wgrad, tiles of 128x64 in clusters of 1x8.
bool SharesDy(const Config& config);

// Whether tiles of 64 columns come in clusters that leave so much of dw's last
// ones empty that others are worth a look.
bool IsEmptyForWgrad(const Problem& problem, const Config& config);

// The first, or the same in clusters of half as many tiles where those leave
// less empty: 96x96x96 32->64 3x3x3 s2 in bf16 at batch 2 takes 144 us in
// clusters of 6, 123 in those of 3, 414 in those of 7 and 705 by tiles of no
// cluster (H200).
const Config& FullestForWgrad(const Problem& problem, const Config& first,
                              const std::vector<Recommendation>& others);

}  // namespace jax_convbatch::cudnn
