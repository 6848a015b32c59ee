// SPDX-License-Identifier: Apache-2.0
// The backward pass of a layer in one kernel; see fused_backward.h.
#include "cuda/sm90/problem/fused_backward.h"

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/memo.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/select/hopper_device.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// dz is wanted where there is a fifth result.
ffi::Error Run(ffi::AnyBuffer bitmask, ffi::AnyBuffer x, ffi::AnyBuffer w,
               ffi::AnyBuffer dy, ffi::AnyBuffer dx, ffi::AnyBuffer dw,
               ffi::AnyBuffer db, ffi::AnyBuffer workspace,
               const ffi::RemainingRets& rest, const ConvGeometry& g,
               Stage stage, cudaStream_t stream) {
  constexpr const char* kName = "layer_backward";
  auto where = [&] { return Describe(kName, g); };
  const ffi::DataType dtype = dy.element_type();
  const auto type = HopperType(dtype, 0);
  if (!type || !hopper::HasFusedBackward(g, *type) || rest.size() > 1) {
    return ffi::Error::InvalidArgument("jax_convbatch: there is no " + where());
  }
  const int64_t bitmask_bytes = g.y_size() / 8;
  auto check = [&](const char* name, const ffi::AnyBuffer& buffer, int64_t size,
                   ffi::DataType wanted) {
    JCB_RETURN_IF_ERROR(CheckSize(kName, g, name, buffer, size));
    if (buffer.element_type() != wanted ||
        reinterpret_cast<uintptr_t>(buffer.untyped_data()) % 16 != 0) {
      return ffi::Error::InvalidArgument(
          "jax_convbatch: dtype or alignment of " + std::string(name) + " in " +
          where());
    }
    return ffi::Error::Success();
  };
  JCB_RETURN_IF_ERROR(check("signs", bitmask, bitmask_bytes, ffi::U8));
  JCB_RETURN_IF_ERROR(check("x", x, g.x_size(), dtype));
  JCB_RETURN_IF_ERROR(check("w", w, g.w_size(), dtype));
  JCB_RETURN_IF_ERROR(check("dy", dy, g.y_size(), dtype));
  JCB_RETURN_IF_ERROR(check("dx", dx, g.x_size(), dtype));
  JCB_RETURN_IF_ERROR(check("dw", dw, g.w_size(), dtype));
  JCB_RETURN_IF_ERROR(check("db", db, g.K, dtype));
  void* dz = nullptr;
  if (rest.size() == 1) {
    auto buffer = rest.get<ffi::AnyBuffer>(0);
    if (!buffer.has_value()) return buffer.error();
    JCB_RETURN_IF_ERROR(check("dz", **buffer, g.y_size(), dtype));
    dz = (**buffer).untyped_data();
  }
  bool hopper;
  int multiprocessors;
  JCB_RETURN_IF_ERROR(CheckDevice(/*any_from_8=*/false, where, &hopper));
  JCB_RETURN_IF_ERROR(
      ToError(DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors),
              where));
  Workspace pieces(workspace);
  const hopper::FusedBackwardCall call = {
      g,
      *type,
      bitmask.untyped_data(),
      x.untyped_data(),
      w.untyped_data(),
      dy.untyped_data(),
      dx.untyped_data(),
      dw.untyped_data(),
      db.untyped_data(),
      dz,
      pieces.Take<char>(
          hopper::FusedBackwardWorkspace(g, *type, multiprocessors))};
  JCB_RETURN_IF_ERROR(pieces.Check(kName, g));
  return ToError(hopper::FusedBackward(call, multiprocessors, stage, stream),
                 where);
}

ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer bitmask,
                   ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer dy,
                   ffi::Result<ffi::AnyBuffer> dx,
                   ffi::Result<ffi::AnyBuffer> dw,
                   ffi::Result<ffi::AnyBuffer> db,
                   ffi::Result<ffi::AnyBuffer> workspace,
                   ffi::RemainingRets rest, const ConvGeometry& g) {
  return Run(bitmask, x, w, dy, *dx, *dw, *db, *workspace, rest, g,
             Stage::kLaunch, stream);
}

// Before the first execution and outside of captures: loads the kernels, once.
ffi::Error Initialize(ffi::AnyBuffer bitmask, ffi::AnyBuffer x,
                      ffi::AnyBuffer w, ffi::AnyBuffer dy,
                      ffi::Result<ffi::AnyBuffer> dx,
                      ffi::Result<ffi::AnyBuffer> dw,
                      ffi::Result<ffi::AnyBuffer> db,
                      ffi::Result<ffi::AnyBuffer> workspace,
                      ffi::RemainingRets rest, const ConvGeometry& g) {
  int device;
  JCB_RETURN_IF_ERROR(ToError(cudaGetDevice(&device),
                              [&] { return Describe("layer_backward", g); }));
  const CallKey key =
      CallKey().Add(device).Add(g).Add(dy.element_type()).Add(rest.size());
  return PrepareOnce<struct FusedBackwardPrepared>(key, [&] {
    return Run(bitmask, x, w, dy, *dx, *dw, *db, *workspace, rest, g,
               Stage::kPrepare, nullptr);
  });
}

template <typename Binding>
auto BindBackward(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // bitmask
      .template Arg<ffi::AnyBuffer>()  // x
      .template Arg<ffi::AnyBuffer>()  // w
      .template Arg<ffi::AnyBuffer>()  // dy
      .template Ret<ffi::AnyBuffer>()  // dx
      .template Ret<ffi::AnyBuffer>()  // dw
      .template Ret<ffi::AnyBuffer>()  // db
      .template Ret<ffi::AnyBuffer>()  // workspace
      .RemainingRets()                 // dz, where wanted
      .template Attr<ConvGeometry>("geometry");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    FusedBackwardExecute, Execute,
    BindBackward(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(FusedBackwardInitialize, Initialize,
                              BindBackward(ffi::Ffi::BindInitialize()));

}  // namespace jax_convbatch
