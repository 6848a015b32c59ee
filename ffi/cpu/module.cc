// The Python module jax_convbatch._cpu: FFI targets for platform "cpu".
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bias_grad.h"
#include "blas.h"
#include "deform.h"
#include "epilogue.h"
#include "im2col_gemm.h"
#include "implicit/kernels.h"
#include "implicit_gemm.h"
#include "parallel.h"
#include "stopwatch.h"

namespace nb = nanobind;

namespace jax_convbatch {
namespace {

nb::capsule Handler(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::dict Targets() {
  nb::dict targets;
  for (const char* engine : {"im2col_gemm", "per_sample"}) {
    const std::string prefix = std::string("jax_convbatch_") + engine;
    targets[(prefix + "_fprop").c_str()] = Handler(FpropCpu);
    targets[(prefix + "_dgrad").c_str()] = Handler(DgradCpu);
    targets[(prefix + "_wgrad").c_str()] = Handler(WgradCpu);
  }
  targets["jax_convbatch_implicit_gemm_fprop"] = Handler(ImplicitFpropCpu);
  targets["jax_convbatch_implicit_gemm_dgrad"] = Handler(ImplicitDgradCpu);
  targets["jax_convbatch_implicit_gemm_wgrad"] = Handler(ImplicitWgradCpu);
  targets["jax_convbatch_im2col_gemm_deform_fprop"] = Handler(DeformFpropCpu);
  targets["jax_convbatch_im2col_gemm_deform_dgrad"] = Handler(DeformDgradCpu);
  targets["jax_convbatch_im2col_gemm_deform_wgrad"] = Handler(DeformWgradCpu);
  targets["jax_convbatch_bgrad"] = Handler(BiasGradCpu);
  targets["jax_convbatch_act_bgrad"] = Handler(ActBgradCpu);
  targets["jax_convbatch_epilogue"] = Handler(EpilogueCpu);
  return targets;
}

nb::dict BuildInfo() {
  nb::dict info;
  info["compiler"] = __VERSION__;
  info["instructions"] = InstructionSet();
  info["threads"] = std::to_string(ThreadCount());
  return info;
}

nb::dict Times() {
  nb::dict times;
  times["products"] = 1e-9 * products_time.load();
  times["handlers"] = 1e-9 * handlers_time.load();
  return times;
}

}  // namespace
}  // namespace jax_convbatch

NB_MODULE(_cpu, m) {
  if (const char* problem = jax_convbatch::ChooseKernels()) {
    throw nb::import_error(problem);
  }
  jax_convbatch::LoadBlas();
  m.def("targets", &jax_convbatch::Targets, "FFI handlers by target name.");
  m.def("times", &jax_convbatch::Times,
        "Seconds so far in the convolution handlers, and in their products.");
  m.def("build_info", &jax_convbatch::BuildInfo,
        "What the module was built with.");
}
