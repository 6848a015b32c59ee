// SPDX-License-Identifier: Apache-2.0
// cuDNN's library, which JAX's CUDA packages bring: found when it is first
// asked for, never linked.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <mutex>
#include <string>

namespace jax_convbatch::cudnn {

// Why the library cannot be used; empty where it can. `path` names it on the
// first call; by default the loader looks for its soname.
const std::string& LibraryProblem(const std::string& path = "");

// The library's version as cuDNN counts it (91900 is 9.19.0), 0 without one.
int64_t LibraryVersion();

// A handle of the current device, which nobody else uses meanwhile: cuDNN's
// handles serve one thread at a time. The first one of a device allocates, so
// no execution may be the first to ask.
class DeviceHandle {
 public:
  // Throws std::runtime_error where there is no library or no device.
  DeviceHandle();

  cudnnHandle_t get() const { return handle_; }
  int device() const { return device_; }

 private:
  int device_;
  cudnnHandle_t handle_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace jax_convbatch::cudnn
