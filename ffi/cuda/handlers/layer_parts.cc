// SPDX-License-Identifier: Apache-2.0
// The backward pass of a small layer with relu as one call: relu's derivative,
// then dgrad, wgrad and the bias gradient side by side where the call is
// captured, one after the other where it is not. Each has the bits that it has
// alone.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/capture_branches.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/handlers/implicit_gemm.h"
#include "cuda/select/hopper_device.h"
#include "cuda/sm90/kernels/fused_backward/relu_grad.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

constexpr const char* kName = "layer_parts";

// Products of an element of dx, and elements of dw, from which on dgrad is the
// longer one: wgrad then has tiles enough without splitting its sums.
constexpr int64_t kLongSum = 2048, kLargeFilter = int64_t{1} << 20;

// saved: y's bitmask or y. scratch: of dgrad, wgrad and the bias gradient.
struct Buffers {
  ffi::AnyBuffer saved, x, w, dy;
  ffi::AnyBuffer dx, dw, db, dz;
  ffi::AnyBuffer scratch[3];
};

ffi::Error Check(const Buffers& b, const ConvGeometry& g, bool bitmask) {
  const ffi::DataType dtype = b.dy.element_type();
  const int64_t y = g.y_size();
  JCB_RETURN_IF_ERROR(
      CheckSize(kName, g, "saved", b.saved, bitmask ? y / 8 : y));
  JCB_RETURN_IF_ERROR(CheckSize(kName, g, "dy", b.dy, y));
  JCB_RETURN_IF_ERROR(CheckSize(kName, g, "dz", b.dz, y));
  JCB_RETURN_IF_ERROR(CheckSize(kName, g, "db", b.db, g.K));
  for (const ffi::AnyBuffer& buffer : {b.saved, b.dy, b.dz, b.scratch[2]}) {
    if (reinterpret_cast<uintptr_t>(buffer.untyped_data()) % 16 != 0) {
      return ffi::Error::Internal(
          "jax_convbatch: a buffer is not aligned to 16 bytes in " +
          Describe(kName, g));
    }
  }
  const bool same = (bitmask || b.saved.element_type() == dtype) &&
                    b.dz.element_type() == dtype &&
                    b.db.element_type() == dtype;
  const auto type = HopperType(dtype, 0);
  const int64_t rows = g.N * g.output_pixels();
  if (!same || !type || !hopper::HasReluGrad(rows, g.K, *type)) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtypes or sizes in " + Describe(kName, g));
  }
  if (static_cast<int64_t>(b.scratch[2].size_bytes()) <
      hopper::ReluGradPartials(rows, g.K) * int64_t{sizeof(float)}) {
    return ffi::Error::Internal(
        "jax_convbatch: the workspace is too small in " + Describe(kName, g));
  }
  return ffi::Error::Success();
}

ffi::Error Run(const Buffers& b, const ConvGeometry& g,
               std::string_view dgrad_config, std::string_view wgrad_config,
               bool launch, cudaStream_t stream) {
  auto where = [&] { return Describe(kName, g); };
  const bool bitmask = b.saved.element_type() == ffi::U8;
  JCB_RETURN_IF_ERROR(Check(b, g, bitmask));
  const hopper::ReluGradCall relu = {
      *HopperType(b.dy.element_type(), 0),
      g.N * g.output_pixels(),
      g.K,
      bitmask,
      b.saved.untyped_data(),
      b.dy.untyped_data(),
      b.dz.untyped_data(),
      b.db.untyped_data(),
      static_cast<float*>(b.scratch[2].untyped_data())};
  const auto stage = launch ? Stage::kLaunch : Stage::kPrepare;
  JCB_RETURN_IF_ERROR(ToError(hopper::ReluGrad(relu, stage, stream), where));
  CaptureBranches branches(stream);
  auto next = [&] {
    return launch ? ToError(branches.Next(), where) : ffi::Error::Success();
  };
  if (launch) JCB_RETURN_IF_ERROR(ToError(branches.Fork(), where));
  JCB_RETURN_IF_ERROR(
      ToError(hopper::ReluGradSums(relu, stage, stream), where));
  JCB_RETURN_IF_ERROR(next());
  auto wgrad = [&] {
    return RunImplicitGemm(Operation::kWgrad, {b.x, b.dz, b.dw, b.scratch[1]},
                           g, 0, wgrad_config, launch, stream);
  };
  auto dgrad = [&] {
    return RunImplicitGemm(Operation::kDgrad, {b.dz, b.w, b.dx, b.scratch[0]},
                           g, 0, dgrad_config, launch, stream);
  };
  // The longer one gets SMs first.
  const bool dgrad_first =
      g.taps() * g.K >= kLongSum && g.w_size() >= kLargeFilter;
  JCB_RETURN_IF_ERROR(dgrad_first ? dgrad() : wgrad());
  JCB_RETURN_IF_ERROR(next());
  JCB_RETURN_IF_ERROR(dgrad_first ? wgrad() : dgrad());
  return launch ? ToError(branches.Join(), where) : ffi::Error::Success();
}

ffi::Error Execute(
    cudaStream_t stream, ffi::AnyBuffer saved, ffi::AnyBuffer x,
    ffi::AnyBuffer w, ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dx,
    ffi::Result<ffi::AnyBuffer> dw, ffi::Result<ffi::AnyBuffer> db,
    ffi::Result<ffi::AnyBuffer> dz, ffi::Result<ffi::AnyBuffer> of_dgrad,
    ffi::Result<ffi::AnyBuffer> of_wgrad, ffi::Result<ffi::AnyBuffer> of_db,
    const ConvGeometry& g, std::string_view dgrad_config,
    std::string_view wgrad_config) {
  return Run(
      {saved, x, w, dy, *dx, *dw, *db, *dz, {*of_dgrad, *of_wgrad, *of_db}}, g,
      dgrad_config, wgrad_config, /*launch=*/true, stream);
}

// Before the first execution and outside of captures: loads the kernels, once.
ffi::Error Initialize(
    ffi::AnyBuffer saved, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer dy,
    ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> dw,
    ffi::Result<ffi::AnyBuffer> db, ffi::Result<ffi::AnyBuffer> dz,
    ffi::Result<ffi::AnyBuffer> of_dgrad, ffi::Result<ffi::AnyBuffer> of_wgrad,
    ffi::Result<ffi::AnyBuffer> of_db, const ConvGeometry& g,
    std::string_view dgrad_config, std::string_view wgrad_config) {
  return Run(
      {saved, x, w, dy, *dx, *dw, *db, *dz, {*of_dgrad, *of_wgrad, *of_db}}, g,
      dgrad_config, wgrad_config, /*launch=*/false, nullptr);
}

template <typename Binding>
auto BindParts(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // y's bitmask or y
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // w
      .template Arg<ffi::AnyBuffer>()  // dy
      .template Ret<ffi::AnyBuffer>()  // dx
      .template Ret<ffi::AnyBuffer>()  // dw
      .template Ret<ffi::AnyBuffer>()  // db
      .template Ret<ffi::AnyBuffer>()  // dz
      .template Ret<ffi::AnyBuffer>()  // workspace of dgrad
      .template Ret<ffi::AnyBuffer>()  // of wgrad
      .template Ret<ffi::AnyBuffer>()  // of the bias gradient
      .template Attr<ConvGeometry>("geometry")
      .template Attr<std::string_view>("dgrad")
      .template Attr<std::string_view>("wgrad");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    LayerPartsExecute, Execute,
    BindParts(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerPartsInitialize, Initialize,
                              BindParts(ffi::Ffi::BindInitialize()));

}  // namespace jax_convbatch
