// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/instantiations/fprop_launch.cuh"
#include "cuda/sm90/kernels/conv/conv_tf32.h"
#include "cuda/sm90/kernels/halo/halo.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"

namespace jax_convbatch::hopper {
namespace {

// What a kernel that takes any epilogue has in place of the plan's tile, with
// the same bits. RowBands take no residual and write no z.
Plan TileOf(const ConvCall& call) {
  Plan plan = call.plan;
  const Epilogue& e = *call.epilogue;
  if (plan.kernel == TileKernel::kRowBand &&
      (e.residual != nullptr || e.z != nullptr)) {
    plan.tile_m = 256;
    plan.kernel = TileKernel::kPingPong;
  }
  return plan;
}

template <typename T>
cudaError_t Run(const ConvCall& given, Stage stage, cudaStream_t stream) {
  if (HasPlainKernels(given.g, *given.epilogue))
    return FpropPlain(given, stage, stream);
  const Activations out = OutputOf(given.g);
  ConvCall call = given;
  call.plan = TileOf(given);
  Epilogue epilogue = *call.epilogue;
  if (epilogue.residual != nullptr &&
      !EncodeTiled(&epilogue.residual_boxes, call.type, epilogue.residual,
                   {out.c, out.n * out.d * out.h * out.w}, {64, 64})) {
    return cudaErrorInvalidValue;
  }
  return RunFprop<T>(call, stage, stream, epilogue);
}

}  // namespace

cudaError_t FpropAct(const ConvCall& given, Stage stage, cudaStream_t stream) {
  ConvCall call = given;
  call.plan = WithEpilogue(given.g, given.type, given.plan, *given.epilogue);
  if (call.plan.kernel == TileKernel::kHalo)
    return HaloFprop(call, stage, stream);
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
