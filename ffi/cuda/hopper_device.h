// What the handlers of the Hopper kernels ask of a dtype and of the device.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_DEVICE_H_
#define JAX_CONVBATCH_CUDA_HOPPER_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "cuda/hopper/conv.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// Of jax.lax.Precision: 0 DEFAULT, 1 HIGH, 2 HIGHEST.
inline constexpr int64_t kHighest = 2;

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

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_HOPPER_DEVICE_H_
