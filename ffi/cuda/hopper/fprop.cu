#include <array>

#include "cuda/hopper/conv_launch.cuh"

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
  return call.type == Type::kBf16 ? Run<__nv_bfloat16>(call, stage, stream)
                                  : Run<__half>(call, stage, stream);
}

}  // namespace jax_convbatch::hopper
