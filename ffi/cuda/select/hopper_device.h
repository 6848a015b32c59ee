// SPDX-License-Identifier: Apache-2.0
// What the handlers of the Hopper kernels ask of a dtype and of the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/common/status.h"
#include "cuda/sm90/problem/conv.h"
#include "ffi_checks.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// Of jax.lax.Precision: 0 DEFAULT, 1 HIGH, 2 HIGHEST.
inline constexpr int64_t kHigh = 1;

// Nothing where the tensor cores have no arithmetic for it; TF32 is the
// default precision's alone.
inline std::optional<hopper::Type> HopperType(xla::ffi::DataType dtype,
                                              int64_t precision) {
  switch (dtype) {
    case xla::ffi::BF16:
      return hopper::Type::kBf16;
    case xla::ffi::F16:
      return hopper::Type::kF16;
    case xla::ffi::F32:
      if (precision == 0) return hopper::Type::kTf32;
      [[fallthrough]];
    default:
      return std::nullopt;
  }
}

// Of the current device.
inline cudaError_t DeviceAttribute(cudaDeviceAttr attribute, int* value) {
  int device;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(value, attribute, device);
}

// Whether the device has the compute capability that kernels of implicit_gemm
// are for (9.0, or 8.0 and later), and whether it is a Hopper GPU.
template <typename Where>
xla::ffi::Error CheckDevice(bool any_from_8, Where&& where, bool* hopper) {
  int major, minor;
  JCB_RETURN_IF_ERROR(ToError(
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major), where));
  JCB_RETURN_IF_ERROR(ToError(
      DeviceAttribute(cudaDevAttrComputeCapabilityMinor, &minor), where));
  *hopper = major == 9 && minor == 0;
  if (any_from_8 ? major >= 8 : *hopper) return xla::ffi::Error::Success();
  const std::string needed = any_from_8 ? "8.0 or later" : "9.0";
  return xla::ffi::Error(
      xla::ffi::ErrorCode::kFailedPrecondition,
      "jax_convbatch: implicit_gemm needs a GPU of compute capability " +
          needed + ", and this one has " + std::to_string(major) + "." +
          std::to_string(minor) + ", in " + where());
}

}  // namespace jax_convbatch
