#include <array>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/window_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

// Two warpgroups that work together on a tile multiply nothing while they write
// it. Where writing is long beside multiplying, they take turns with its
// halves, which gives the same bits. Lines have a plain epilogue alone.
Plan InHalves(const ConvCall& call) {
  const ConvGeometry& g = call.g;
  Plan plan = call.plan;
  const int64_t iterations = g.taps() * ((g.C + 63) / 64);
  const bool lines = plan.tile_m == kLineTilePixels &&
                     plan.tile_n == kLineTileChannels &&
                     call.epilogue->is_plain();
  if (plan.tile_n == 256 && iterations <= kPacedIterations && !lines) {
    plan.tile_n = 128;
  }
  return plan;
}

template <typename T>
cudaError_t Run(const ConvCall& given, Stage stage, cudaStream_t stream) {
  constexpr int kBoxC = 64;  // as in fprop.cu
  ConvCall call = given;
  call.plan = InHalves(given);
  const Activations out = OutputOf(call.g);
  Epilogue epilogue = *call.epilogue;
  const PartAxes part = FpropPart(call.g);
  if (call.plan.tile_m == kWindowPixels && epilogue.residual == nullptr &&
      epilogue.z == nullptr) {
    return RunWindow<T, Contiguous::kRows>(call, InputOf(call.g), out, part,
                                           stage, stream, epilogue);
  }
  if (epilogue.residual != nullptr &&
      !EncodeTiled(&epilogue.residual_boxes, call.type, epilogue.residual,
                   {out.c, out.n * out.h * out.w}, {64, 64})) {
    return cudaErrorInvalidValue;
  }
  const std::array<PartAxes, 1> parts = {part};
  return RunConv<T, Contiguous::kRows, 1>(call, InputOf(call.g), out, parts,
                                          kBoxC, stage, stream, epilogue);
}

}  // namespace

cudaError_t FpropAct(const ConvCall& call, Stage stage, cudaStream_t stream) {
  switch (call.type) {
    case Type::kBf16:
      return Run<__nv_bfloat16>(call, stage, stream);
    case Type::kF16:
      return Run<__half>(call, stage, stream);
    default:
      return FpropActTf32(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
