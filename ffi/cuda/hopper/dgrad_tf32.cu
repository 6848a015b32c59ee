#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/conv_tf32_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <int kParts>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int box_c = call.plan.tile_n;  // all rows of a tile's filter
  return RunConvTf32<Contiguous::kReduction, kParts>(
      call, OutputOf(call.g), InputOf(call.g), DgradParts(call.g), box_c, stage,
      stream);
}

}  // namespace

cudaError_t DgradTf32(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const Axes& stride = call.g.stride;
  return stride.h == 1 && stride.w == 1 ? Run<1>(call, stage, stream)
                                        : Run<kMaxParts>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
