#include <array>

#include "cuda/hopper/columns.h"
#include "cuda/hopper/conv_tf32_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <int kM, int kN, int kStages>
cudaError_t Launch(const ColumnsCall& call, Stage stage, cudaStream_t stream) {
  // The gradient of a convolution that has K for its input.
  ConvGeometry g = call.images;
  std::swap(g.C, g.K);
  const Plan plan = {kM, kN, call.plan.blocks, 0};
  const ConvCall conv = {g,           Type::kTf32, plan,   call.columns,
                         call.filter, call.y,      nullptr};
  using Config = Tf32Config<kM, kN, kStages, Contiguous::kReduction>;
  return LaunchConvTf32<Config, 1>(conv, OutputOf(g), InputOf(g), DgradParts(g),
                                   kN, stage, stream, ChannelBias{call.bias});
}

}  // namespace

cudaError_t MultiplyColumns(const ColumnsCall& call, Stage stage,
                            cudaStream_t stream) {
  if (call.plan.tile_n == 128) {
    return Launch<128, 128, 6>(call, stage, stream);
  }
  return call.plan.tile_m == 128 ? Launch<128, 64, 7>(call, stage, stream)
                                 : Launch<64, 64, 8>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
