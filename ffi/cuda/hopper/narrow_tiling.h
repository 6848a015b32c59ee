// How the kernels of narrow_conv.cuh and narrow_wgrad.cuh share their pixels.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_NARROW_TILING_H_
#define JAX_CONVBATCH_CUDA_HOPPER_NARROW_TILING_H_

namespace jax_convbatch::hopper {

inline constexpr int kNarrowWarps = 8, kNarrowThreads = 32 * kNarrowWarps;

// Groups of 64 bytes of an input pixel that fprop and dgrad have kernels for;
// of nine groups, as 144 channels of f32 have, boxes were no slower.
inline constexpr int kNarrowGroups[] = {1, 2, 3, 5, 6};

// Pixels that a warp has at a time, while it loads as many, and blocks of a
// multiprocessor: as registers allow.
constexpr int NarrowTile(int groups) { return groups <= 2 ? 32 : 16; }
constexpr int NarrowResident(int groups) { return groups <= 3 ? 2 : 1; }

// Of wgrad, channels of the wider and of the narrower operand that there are
// kernels for.
inline constexpr int kNarrowA[] = {16, 32, 64, 96, 144};
inline constexpr int kNarrowB[] = {16, 32};

// Pixels that a warp loads at once, in steps of 32 bytes a channel, and blocks
// of a multiprocessor.
constexpr int NarrowWgradSteps(int a, int b) {
  return a + b <= 48 ? 4 : a + b <= 64 ? 2 : 1;
}
constexpr int NarrowWgradPixels(int a, int b, int element_bytes) {
  return NarrowWgradSteps(a, b) * 32 / element_bytes;
}
constexpr int NarrowWgradResident(int a, int b) {
  return a * b <= 1536 ? 2 : 1;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_NARROW_TILING_H_
