// SPDX-License-Identifier: Apache-2.0
// Deformable convolution by the engine implicit_gemm: fprop, sampled straight
// into the tensor cores' operand. See deform_kernel.cuh.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/common/status.h"
#include "cuda/handlers/deform_fprop_call.h"
#include "cuda/handlers/deform_memo.h"
#include "cuda/handlers/handlers.h"
#include "cuda/select/hopper_device.h"
#include "cuda/sm90/kernels/deform/deform.h"
#include "deform_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

ffi::Error Run(const DeformFpropBuffers& b, const ConvGeometry& g,
               const DeformOptions& options, Stage stage, cudaStream_t stream) {
  JCB_RETURN_IF_ERROR(CheckDeformFpropCall(g, options, b));
  auto where = [&] { return Describe("deform_fprop", g); };
  for (const ffi::AnyBuffer& buffer :
       {b.x, b.cells, b.corners, b.offset, b.mask, b.w, b.bias, b.y}) {
    if (reinterpret_cast<uintptr_t>(buffer.untyped_data()) % 16 != 0) {
      return ffi::Error::Internal(
          "jax_convbatch: a buffer is not aligned to 16 bytes in " + where());
    }
  }
  const ffi::DataType dtype = b.x.element_type();
  const auto type = HopperType(dtype, options.precision);
  if (!type || b.w.element_type() != dtype || b.y.element_type() != dtype) {
    return UnsupportedDtypes(Operation::kFprop, g);
  }
  bool hopper;
  int multiprocessors;
  JCB_RETURN_IF_ERROR(CheckDevice(/*any_from_8=*/false, where, &hopper));
  JCB_RETURN_IF_ERROR(
      ToError(DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors),
              where));
  const auto plan =
      hopper::PlanDeformFprop(g, *type, options.offset_groups, multiprocessors);
  if (!plan) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: implicit_gemm does not cover the deformable " +
        where());
  }
  const hopper::DeformCall call = {
      g,
      *type,
      options.offset_groups,
      *plan,
      b.x.untyped_data(),
      b.At(0),
      b.w.untyped_data(),
      b.bias_data(),
      b.y.untyped_data(),
  };
  return ToError(hopper::DeformFprop(call, stage, stream), where);
}

ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer cells,
                   ffi::AnyBuffer corners, ffi::AnyBuffer offset,
                   ffi::AnyBuffer mask, ffi::AnyBuffer w, ffi::AnyBuffer bias,
                   ffi::Result<ffi::AnyBuffer> y, ConvGeometry g,
                   int64_t /*slice*/, int64_t precision,
                   int64_t offset_groups) {
  return Run({x, cells, corners, offset, mask, w, bias, *y}, g,
             {1, precision, offset_groups}, Stage::kLaunch, stream);
}

// Before the first execution and outside of captures: loads the kernel.
ffi::Error Initialize(ffi::AnyBuffer x, ffi::AnyBuffer cells,
                      ffi::AnyBuffer corners, ffi::AnyBuffer offset,
                      ffi::AnyBuffer mask, ffi::AnyBuffer w,
                      ffi::AnyBuffer bias, ffi::Result<ffi::AnyBuffer> y,
                      ConvGeometry g, int64_t /*slice*/, int64_t precision,
                      int64_t offset_groups) {
  const DeformOptions options{1, precision, offset_groups};
  struct Tag;
  return PrepareDeformOnce<Tag>(
      g, options, "", {x, cells, corners, offset, mask, w, bias, *y}, [&] {
        return Run({x, cells, corners, offset, mask, w, bias, *y}, g, options,
                   Stage::kPrepare, nullptr);
      });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ImplicitDeformFpropExecute, Execute,
    DeformOptionsOf(BindDeformFpropArrays(
        ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>())),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ImplicitDeformFpropInitialize, Initialize,
    DeformOptionsOf(BindDeformFpropArrays(ffi::Ffi::BindInitialize())));

}  // namespace jax_convbatch
