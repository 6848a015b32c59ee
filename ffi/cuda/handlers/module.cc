// SPDX-License-Identifier: Apache-2.0
// The Python module _cuda: the FFI handlers by target name.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "cuda/common/left_out.h"
#include "cuda/handlers/cudnn_plan.h"
#include "cuda/handlers/handlers.h"
#include "cuda/handlers/implicit_gemm_plan.h"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"

namespace nb = nanobind;
using namespace nb::literals;

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
  auto add = [&](const std::string& engine, const char* operation,
                 nb::dict stages) {
    const std::string name = "jax_convbatch_" + engine + "_" + operation;
    targets[name.c_str()] = stages;
  };
  for (const char* engine : {"im2col_gemm", "per_sample"}) {
    add(engine, "fprop", Stages(CudaFpropInitialize, CudaFpropExecute));
    add(engine, "dgrad", Stages(CudaDgradInitialize, CudaDgradExecute));
    add(engine, "wgrad", Stages(CudaWgradInitialize, CudaWgradExecute));
  }
  add("im2col_gemm", "deform_fprop",
      Stages(CudaDeformFpropInitialize, CudaDeformFpropExecute));
  add("im2col_gemm", "deform_dgrad",
      Stages(CudaDeformDgradInitialize, CudaDeformDgradExecute));
  add("im2col_gemm", "deform_wgrad",
      Stages(CudaDeformWgradInitialize, CudaDeformWgradExecute));
  const char* engine = "implicit_gemm";
  add(engine, "fprop", Stages(ImplicitFpropInitialize, ImplicitFpropExecute));
  add(engine, "fprop_act",
      Stages(ImplicitFpropActInitialize, ImplicitFpropActExecute));
  add(engine, "dgrad", Stages(ImplicitDgradInitialize, ImplicitDgradExecute));
  add(engine, "wgrad", Stages(ImplicitWgradInitialize, ImplicitWgradExecute));
  add(engine, "norm_act_fprop",
      Stages(NormActFpropInitialize, NormActFpropExecute));
  add(engine, "norm_act_gradient",
      Stages(NormActGradientInitialize, NormActGradientExecute));
  add("cudnn", "fprop", Stages(CudnnFpropInitialize, CudnnFpropExecute));
  add("cudnn", "fprop_act",
      Stages(CudnnFpropActInitialize, CudnnFpropActExecute));
  add("cudnn", "dgrad", Stages(CudnnDgradInitialize, CudnnDgradExecute));
  add("cudnn", "wgrad", Stages(CudnnWgradInitialize, CudnnWgradExecute));
  targets["jax_convbatch_fprop_not_finite"] =
      Encapsulate(CudaFpropNotFiniteExecute);
  targets["jax_convbatch_dgrad_not_finite"] =
      Encapsulate(CudaDgradNotFiniteExecute);
  targets["jax_convbatch_causal_conv1d"] = Encapsulate(CudaCausalConv1dExecute);
  targets["jax_convbatch_causal_conv1d_grad"] =
      Encapsulate(CudaCausalConv1dGradExecute);
  targets["jax_convbatch_causal_conv1d_update"] =
      Encapsulate(CudaCausalConv1dUpdateExecute);
  targets["jax_convbatch_bgrad"] = Encapsulate(CudaBgradExecute);
  targets["jax_convbatch_act_bgrad"] = Encapsulate(CudaActBgradExecute);
  targets["jax_convbatch_epilogue"] = Encapsulate(CudaEpilogueExecute);
  targets["jax_convbatch_channel_sums"] = Encapsulate(CudaChannelSumsExecute);
  return targets;
}

int64_t CausalSums(int64_t G, int64_t n, int64_t L, int64_t C, int64_t taps,
                   int64_t dilation) {
  CausalConv1d call{};
  call.G = G;
  call.n = n;
  call.L = L;
  call.C = C;
  call.taps = taps;
  call.dilation = dilation;
  return causal::PartialSums(call);
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

void LeaveOutFamilies(nb::list names) {
  LeaveOutNone();
  for (const auto name : names) {
    if (!LeaveOut(nb::cast<std::string>(name))) {
      const std::string message = "no family " + nb::cast<std::string>(name);
      throw nb::value_error(message.c_str());
    }
  }
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.def("targets", &Targets,
        "FFI handlers on CUDA: target name -> capsule, or stage -> capsule.");
  m.def("build_info", &BuildInfo, "The versions this was compiled against.");
  m.def("implicit_gemm_plans", &ImplicitGemmPlans, "op"_a, "geometry"_a,
        "dtype"_a, "multiprocessors"_a, "hopper"_a = true, "exact"_a = false,
        "Every way implicit_gemm can run an operation on a GPU of so many "
        "multiprocessors,\nthe one that its rule takes first; empty where it "
        "does not support the geometry\n(float32 is multiplied as TF32 unless "
        "`exact`). Needs no GPU. Raises ValueError for an unknown\noperation "
        "or dtype, KeyError "
        "where the geometry lacks a field.\n`hopper`: whether the GPU is one, "
        "where there are several groups.");
  m.def("implicit_gemm_tiles", &ImplicitGemmTiles, "op"_a, "geometry"_a,
        "dtype"_a, "multiprocessors"_a,
        "The tiles of fprop or dgrad of one group that implicit_gemm chooses "
        "among, and\nwhat it reckons with (ffi/cuda/select/conv_tiles.h). As "
        "implicit_gemm_plans\notherwise.");
  m.def("implicit_gemm_column_plan", &ImplicitGemmColumnPlan, "op"_a,
        "geometry"_a, "dtype"_a, "slice"_a, "multiprocessors"_a,
        "How implicit_gemm multiplies the sampled columns of a deformable "
        "convolution,\nso many samples at a time, or None where cuBLAS does. "
        "As implicit_gemm_plans\notherwise.");
  m.def("implicit_gemm_layer_config", &ImplicitGemmLayerConfig, "geometry"_a,
        "dtype"_a, "config"_a, "plain"_a, "bitmask"_a, "multiprocessors"_a,
        "What fprop by a configuration runs as with an epilogue: of a bias and "
        "relu at most\n(`plain`), with a bitmask. As implicit_gemm_plans "
        "otherwise.");
  m.def("implicit_gemm_norm_act_plan", &ImplicitGemmNormActPlan, "op"_a,
        "geometry"_a, "dtype"_a, "activation"_a, "multiprocessors"_a,
        "How implicit_gemm runs a norm, an activation and a convolution in one "
        "kernel\n(\"fprop\") or their gradient (\"dgrad\"), or None where it "
        "does not. As\nimplicit_gemm_plans otherwise.");
  m.def("leave_out", &LeaveOutFamilies, "names"_a,
        "Has plans do without families of kernels, and with all others. For "
        "measurements;\nraises ValueError for an unknown name.");
  m.def("causal_conv1d_sums", &CausalSums, "G"_a, "n"_a, "L"_a, "C"_a, "taps"_a,
        "dilation"_a,
        "How many partial sums the gradient of causal_conv1d stores.");
  m.def("load_cudnn", &LoadCudnn, "path"_a,
        "Loads cuDNN from a file, or by its soname where `path` is empty; the "
        "first call\ncounts. Why it cannot be used, or an empty string.");
  m.def("cudnn_version", &CudnnVersion,
        "Of the library that was loaded; empty without one.");
  m.def("cudnn_plans", &CudnnPlans, "op"_a, "geometry"_a, "dtype"_a,
        "out_dtype"_a, "tf32"_a, "layer"_a, "workspace_limit"_a, "most"_a,
        "Ways to run an operation by cuDNN on the current GPU, its heuristics' "
        "first, or why\nthere are none. `layer`: the fields of an epilogue, or "
        "nothing.");
}

}  // namespace jax_convbatch
