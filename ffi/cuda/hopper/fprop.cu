#include <array>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/conv_tf32.h"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  constexpr int kBoxC = 64;  // a stage's channels; the kernel takes K in turns
  const std::array<PartAxes, 1> parts = {FpropPart(call.g)};
  return RunConv<T, Contiguous::kRows, 1>(
      call, InputOf(call.g), OutputOf(call.g), parts, kBoxC, stage, stream);
}

}  // namespace

cudaError_t Fprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return Run<__half>(call, stage, stream);
    default:
      return FpropTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
