// SPDX-License-Identifier: Apache-2.0
// The sub-problems of a convolution: the outputs that use the same taps, all of
// them or a residue class of dgrad's stride, and how each walks its input and
// its output. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "conv_geometry.h"
#include "cuda/common/tap_axis.h"
#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/tensor_map.h"
#include "cuda/sm90/problem/tensor_map_3d.h"

namespace jax_convbatch::hopper {

// The most parts that a launch has.
inline constexpr int kMaxSubproblems = 16;

// One axis of a sub-problem: `count` outputs from `output`, `output_step`
// apart; output i reads its taps from base pixel `input` + i `input_step` on.
struct SubproblemAxis {
  int64_t count, output, input;
  int output_step, input_step;
  TapAxis taps;
  // Of the im2col box: base pixels end at size - 1 + upper.
  int64_t upper;
};

// Two axes have one slice, and one tap in depth.
inline constexpr SubproblemAxis kOneSlice = {1, 0, 0, 1, 1, {1, 0, 1, 1}, 0};

struct SubproblemAxes {
  SubproblemAxis h, w, d = kOneSlice;

  int64_t taps() const {
    return int64_t{d.taps.count} * h.taps.count * w.taps.count;
  }
  int64_t pixels() const { return d.count * h.count * w.count; }  // an image's
};

// A tensor of activations.
struct Activations {
  int64_t n, h, w, c, d = 1;
};

inline Activations InputOf(const ConvGeometry& g) {
  return {g.N, g.H, g.W, g.C, g.D};
}
inline Activations OutputOf(const ConvGeometry& g) {
  return {g.N, g.P, g.Q, g.K, g.O};
}

inline bool Is3d(const ConvGeometry& g) {
  return g.D != 1 || g.T != 1 || g.O != 1;
}

// What the copy engine's strides may be.
inline constexpr int64_t kMostSteps = 8;

// Whether the other functions may be asked: one group, no input dilation, C and
// K multiples of 16 bytes, and no number so large that it could overflow; and
// the same of two axes.
bool IsPlain(const ConvGeometry& g, Type type);
bool IsPlain2d(const ConvGeometry& g, Type type);

// The same for several groups (group_width.h): of multiples of 16 bytes of
// channels of which either is 32 or more, or in bf16 and f16 of 16 to 16.
bool IsGroups2d(const ConvGeometry& g, Type type);

// Whether kernels whose threads compute their own addresses in x and y can run:
// 2-D, one group, no input dilation, any channels and strides, and no index
// that 32 bits do not hold.
bool FitsIn32Bits(const ConvGeometry& g);

// Whether the filter cuts x into patches, each pixel in one.
bool IsPatches(const ConvGeometry& g);

// fprop and wgrad of patches with a patch's rows as pixels and all that they
// hold as channels, where TMA can take these; other geometries as they are.
ConvGeometry FoldPatches(const ConvGeometry& g, Type type);

// The one sub-problem of fprop; wgrad walks x in the same way.
SubproblemAxes FpropSubproblem(const ConvGeometry& g);

// How far the taps of a row that share their pixels reach at most.
inline constexpr int kTapReach = 8;

// Whether three taps of a row may share their pixels, walked by WithReach, and
// the columns that this adds to a row cost less than it saves.
bool TapsShare(const SubproblemAxis& w);

// The sub-problem with the pixels between the last of a row and the first of
// the next, as many as its taps reach further: all taps then read at a fixed
// distance in the line of pixels. Strides of 1 along the row.
SubproblemAxes WithReach(const SubproblemAxes& sub);

// dgrad's sub-problems: one a residue class of the stride, those of most taps
// first, so that the short ones fill the gaps at the end. Empty where they
// would be more than kMaxSubproblems.
std::vector<SubproblemAxes> DgradSubproblems(const ConvGeometry& g);

// How a sub-problem reads and writes, in boxes of so many pixels. Of three
// axes, a slice's.
Im2colWalk InputWalk(const Activations& in, const SubproblemAxes& sub,
                     int pixels, int64_t groups = 1);
Im2colWalk OutputWalk(const Activations& out, const SubproblemAxes& sub,
                      int pixels, int64_t groups = 1);
Walk3d InputWalk3d(const Activations& in, const SubproblemAxes& sub,
                   int pixels);
Walk3d OutputWalk3d(const Activations& out, const SubproblemAxes& sub,
                    int pixels);

// Whether the sums of the only sub-problem are formed in K slices
// (conv_k_slices.cuh): long ones of few outputs an image, whatever the number
// of images. Not for TF32.
bool SumsInKSlices(const Activations& in, const Activations& out,
                   const SubproblemAxes& sub);

// Of TF32, in how many (conv_tf32_k_slices.cuh): 1 where sums are whole. It
// follows from one sample, so that the batch does not show in the bits.
int Tf32KSlices(const Activations& in, const Activations& out,
                const SubproblemAxes& sub);

// Whether the tiles of a stride's sub-problems come one after another, those of
// most taps first, on so many blocks; else sub-problems take turns, so that
// what lies side by side is written together. Of few tiles a long one would
// come last, and blocks that begin side by side would share nothing that they
// read. `stages`: of the longest. All sub-problems have taps.
inline bool LongestFirst(int64_t tiles, int64_t stages, int blocks) {
  const int64_t rounds = stages >= 32 ? 4 : 2;
  return tiles <= rounds * blocks;
}

// Whether taps and corners fit TMA's instruction, and the tiles 32 bits.
// `groups`: those of the walks' maps. IsWalkable3d: of maps of three axes.
bool IsWalkable(Type type, const Activations& in, const Activations& out,
                const SubproblemAxes& sub, int64_t groups = 1);
bool IsWalkable3d(Type type, const Activations& in, const Activations& out,
                  const SubproblemAxes& sub);

}  // namespace jax_convbatch::hopper
