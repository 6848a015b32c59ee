// The Python module _cuda: the FFI handlers by target name.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <string>

#include "cuda/handlers.h"

namespace nb = nanobind;

namespace jax_convbatch {
namespace {

nb::capsule Encapsulate(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::dict Stages(XLA_FFI_Handler* initialize, XLA_FFI_Handler* execute) {
  nb::dict stages;
  stages["initialize"] = Encapsulate(initialize);
  stages["execute"] = Encapsulate(execute);
  return stages;
}

nb::dict Targets() {
  nb::dict targets;
  for (const std::string engine : {"im2col_gemm", "per_sample"}) {
    const std::string prefix = "jax_convbatch_" + engine;
    targets[nb::str((prefix + "_fprop").c_str())] =
        Stages(CudaFpropInitialize, CudaFpropExecute);
    targets[nb::str((prefix + "_dgrad").c_str())] =
        Stages(CudaDgradInitialize, CudaDgradExecute);
    targets[nb::str((prefix + "_wgrad").c_str())] =
        Stages(CudaWgradInitialize, CudaWgradExecute);
  }
  targets["jax_convbatch_bgrad"] = Encapsulate(CudaBgradExecute);
  return targets;
}

std::string Version(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

nb::dict BuildInfo() {
  const std::string cuda =
      Version(CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  const std::string cublas = Version(CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR) + "." +
                             std::to_string(CUBLAS_VER_PATCH);
  const std::string ffi = Version(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  nb::dict info;
  info["CUDA"] = cuda.c_str();
  info["cuBLAS"] = cublas.c_str();
  info["XLA FFI"] = ffi.c_str();
  return info;
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.def("targets", &Targets,
        "FFI handlers on CUDA: target name -> capsule, or stage -> capsule.");
  m.def("build_info", &BuildInfo, "The versions this was compiled against.");
}

}  // namespace jax_convbatch
