// The variants of the depthwise kernels.
#ifndef JAX_CONVBATCH_CUDA_DIRECT_DEPTHWISE_KIND_H_
#define JAX_CONVBATCH_CUDA_DIRECT_DEPTHWISE_KIND_H_

#include "cuda/direct/walk.h"

namespace jax_convbatch::direct {

inline constexpr int kThreads = 256;
// Threads that share a pixel, two channels each.
inline constexpr int kLanes = 16;
inline constexpr int kTileChannels = kLanes * 2;
inline constexpr int kSlots = kThreads / kLanes;

// A square filter of `taps` x `taps` undilated taps, all of which every output
// uses, and the step of the input from one output to the next; every pixel is
// aligned to 16 bytes. Zeros: any.
struct Kind {
  int taps, step;
};

inline constexpr Kind kKinds[] = {{3, 1}, {3, 2}, {5, 1}, {5, 2}, {7, 1}};

inline Kind KindOf(const Walks& walks, int64_t pixel_bytes) {
  for (const Kind& kind : kKinds) {
    auto fits = [&](const AxisWalk& axis) {
      return axis.classes == 1 && axis.in_step == kind.step &&
             axis.offset_step == 1 && axis.filter_size == kind.taps;
    };
    if (fits(walks.h) && fits(walks.w) && pixel_bytes % 16 == 0) return kind;
  }
  return {0, 0};
}

// The outputs that a thread sees at a time, of a type of so many bytes.
constexpr int PatchRows(Kind kind, int bytes) {
  return kind.taps == 0 ? 1 : bytes == 2 ? 4 : 2;
}
constexpr int PatchCols(Kind kind) { return kind.taps == 0 ? 8 : 4; }

// Tiles in shared memory, one in use and the others on their way, and blocks
// that a multiprocessor holds. Where the kind is known, a tile of fprop and
// dgrad holds no more patches than there are threads for.
constexpr int PatchStages(Kind kind) { return kind.taps > 3 ? 2 : 3; }
constexpr int PatchBlocks(Kind kind) { return kind.taps > 3 ? 2 : 3; }
inline constexpr int kWgradStages = 2;
constexpr int WgradBlocks(Kind kind) { return kind.taps > 3 ? 2 : 3; }

// The taps whose sums a thread of wgrad keeps: rows of the filter where the
// kind is known.
constexpr int ChunkRows(Kind kind) { return kind.taps == 7 ? 4 : kind.taps; }
constexpr int ChunkTaps(Kind kind) {
  return kind.taps == 0 ? 8 : ChunkRows(kind) * kind.taps;
}

}  // namespace jax_convbatch::direct

#endif  // JAX_CONVBATCH_CUDA_DIRECT_DEPTHWISE_KIND_H_
