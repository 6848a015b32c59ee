// Tiles of the window kernel, as the host chooses them.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_WINDOW_TILING_H_
#define JAX_CONVBATCH_CUDA_HOPPER_WINDOW_TILING_H_

namespace jax_convbatch::hopper {

// Pixels of a product, among them those that are no output's.
inline constexpr int kWindowPixels = 232;
inline constexpr int kWindowChannels = 64;
inline constexpr int kWindowRowPixels = 64;  // of a product of one row
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

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_WINDOW_TILING_H_
