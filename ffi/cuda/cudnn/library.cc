// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/library.h"

#include <dlfcn.h>

#include <map>
#include <stdexcept>

#include "cuda/cudnn/frontend.h"

// Where the frontend looks its functions up.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace jax_convbatch::cudnn {
namespace {

// The first that tells a configuration's workspace before it is built.
constexpr int64_t kOldest = 90200;

std::string Load(const std::string& path) {
  const char* name = path.empty() ? "libcudnn.so.9" : path.c_str();
  void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();
    return std::string("cuDNN 9 cannot be loaded: ") +
           (error != nullptr ? error : name);
  }
  const auto version =
      reinterpret_cast<size_t (*)()>(dlsym(handle, "cudnnGetVersion"));
  if (version == nullptr || static_cast<int64_t>(version()) < kOldest) {
    dlclose(handle);
    return std::string(name) + " is older than cuDNN 9.2";
  }
  cudnn_frontend::cudnn_dlhandle = handle;
  return "";
}

// One handle a device. Never destroyed: the CUDA driver may be gone before
// static destructors run.
struct Handles {
  struct Slot {
    std::mutex mutex;
    cudnnHandle_t handle = nullptr;
  };
  std::mutex mutex;
  std::map<int, Slot> slots;

  Slot& Of(int device) {
    const std::lock_guard<std::mutex> lock(mutex);
    return slots[device];
  }
};

Handles& GetHandles() {
  static Handles* const handles = new Handles;
  return *handles;
}

}  // namespace

const std::string& LibraryProblem(const std::string& path) {
  static const std::string* const problem = new std::string(Load(path));
  return *problem;
}

int64_t LibraryVersion() {
  if (!LibraryProblem().empty()) return 0;
  return static_cast<int64_t>(cudnn_frontend::detail::get_backend_version());
}

DeviceHandle::DeviceHandle() {
  if (!LibraryProblem().empty()) throw std::runtime_error(LibraryProblem());
  if (cudaGetDevice(&device_) != cudaSuccess) {
    throw std::runtime_error("CUDA has no current device");
  }
  Handles::Slot& slot = GetHandles().Of(device_);
  lock_ = std::unique_lock<std::mutex>(slot.mutex);
  if (slot.handle == nullptr) {
    const cudnnStatus_t status =
        cudnn_frontend::detail::create_handle(&slot.handle);
    if (status != CUDNN_STATUS_SUCCESS) {
      slot.handle = nullptr;
      throw std::runtime_error(
          std::string("cuDNN makes no handle: ") +
          cudnn_frontend::detail::get_error_string(status));
    }
  }
  handle_ = slot.handle;
}

}  // namespace jax_convbatch::cudnn
