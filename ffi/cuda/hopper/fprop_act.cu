#include <array>

#include "cuda/hopper/conv_launch.cuh"
#include "cuda/hopper/conv_tf32.h"
#include "cuda/hopper/window_launch.cuh"

namespace jax_convbatch::hopper {
namespace {

// The tile of the plan, or its halves, which give the same bits. Two warpgroups
// that work together on a tile multiply nothing while they write it: with a
// plain epilogue that is worth what it saves in short sums, otherwise in long
// ones. Lines have a plain epilogue alone.
Plan TileOf(const ConvCall& call) {
  Plan plan = call.plan;
  if (plan.tile_n != 256) return plan;
  const ConvGeometry& g = call.g;
  const bool plain = call.epilogue->is_plain();
  const bool lines = plan.tile_m == kLineTilePixels;
  const bool is_short = g.taps() * ((g.C + 63) / 64) <= kPacedIterations;
  if (lines ? !plain : plain != is_short) plan.tile_n = 128;
  return plan;
}

template <typename T>
cudaError_t Run(const ConvCall& given, Stage stage, cudaStream_t stream) {
  constexpr int kBoxC = 64;  // as in fprop.cu
  ConvCall call = given;
  call.plan = TileOf(given);
  const Activations out = OutputOf(call.g);
  Epilogue epilogue = *call.epilogue;
  const PartAxes part = FpropPart(call.g);
  if (IsWindow(call.plan) && epilogue.residual == nullptr &&
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
