#include <array>

#include "cuda/hopper/conv_tf32_launch.cuh"
#include "cuda/hopper/group_conv.h"

namespace jax_convbatch::hopper {
namespace {

template <int kParts>
cudaError_t RunDgrad(const ConvCall& call, Stage stage, cudaStream_t stream) {
  const int box_c = call.plan.tile_n;  // as in dgrad_tf32.cu
  return RunConvTf32<Contiguous::kReduction, kParts, kWideGroups>(
      call, OutputOf(call.g), InputOf(call.g), DgradParts(call.g), box_c, stage,
      stream);
}

}  // namespace

cudaError_t GroupFpropTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  const std::array<PartAxes, 1> parts = {FpropPart(call.g)};
  return RunConvTf32<Contiguous::kRows, 1, kWideGroups>(
      call, InputOf(call.g), OutputOf(call.g), parts, kTf32Block, stage,
      stream);
}

cudaError_t GroupDgradTf32(const ConvCall& call, Stage stage,
                           cudaStream_t stream) {
  const Axes& stride = call.g.stride;
  return stride.h == 1 && stride.w == 1
             ? RunDgrad<1>(call, stage, stream)
             : RunDgrad<kMaxParts>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
