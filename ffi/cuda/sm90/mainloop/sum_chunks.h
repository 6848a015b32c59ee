// Long sums of few outputs an image (SumsInChunks in conv_parts.h) are formed
// in chunks, each from zero, which are added in order.
#ifndef JAX_CONVBATCH_CUDA_SM90_MAINLOOP_SUM_CHUNKS_H_
#define JAX_CONVBATCH_CUDA_SM90_MAINLOOP_SUM_CHUNKS_H_

namespace jax_convbatch::hopper {

inline constexpr int kSumChunks = 4;

// What a chunk's first stage is, as StageWalk counts, and how many it has.
struct ConvChunk {
  int r, s, block, count;
};
struct ConvChunks {
  ConvChunk chunk[kSumChunks];
};

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_MAINLOOP_SUM_CHUNKS_H_
