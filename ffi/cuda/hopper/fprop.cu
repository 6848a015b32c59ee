#include <array>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/window_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

template <typename T>
cudaError_t Run(const ConvCall& call, Stage stage, cudaStream_t stream) {
  constexpr int kBoxC = 64;  // a stage's channels; the kernel takes K in turns
  const std::array<PartAxes, 1> parts = {FpropPart(call.g)};
  const Activations in = InputOf(call.g), out = OutputOf(call.g);
  if (IsWindow(call.plan)) {
    return RunWindow<T, Contiguous::kRows>(call, in, out, parts[0], stage,
                                           stream);
  }
  return RunConv<T, Contiguous::kRows, 1>(call, in, out, parts, kBoxC, stage,
                                          stream);
}

}  // namespace

cudaError_t Fprop(const ConvCall& call, Stage stage, cudaStream_t stream) {
  if (call.epilogue != nullptr) return FpropAct(call, stage, stream);
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
