// SPDX-License-Identifier: Apache-2.0
// The Python module jax_convbatch._cpu: FFI targets for platform "cpu".
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "bias_grad.h"
#include "blas.h"
#include "causal_conv1d.h"
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
  targets["jax_convbatch_implicit_gemm_fprop_act"] =
      Handler(ImplicitFpropActCpu);
  targets["jax_convbatch_implicit_gemm_dgrad"] = Handler(ImplicitDgradCpu);
  targets["jax_convbatch_implicit_gemm_wgrad"] = Handler(ImplicitWgradCpu);
  targets["jax_convbatch_im2col_gemm_deform_fprop"] = Handler(DeformFpropCpu);
  targets["jax_convbatch_im2col_gemm_deform_dgrad"] = Handler(DeformDgradCpu);
  targets["jax_convbatch_im2col_gemm_deform_wgrad"] = Handler(DeformWgradCpu);
  targets["jax_convbatch_bgrad"] = Handler(BiasGradCpu);
  targets["jax_convbatch_act_bgrad"] = Handler(ActBgradCpu);
  targets["jax_convbatch_epilogue"] = Handler(EpilogueCpu);
  targets["jax_convbatch_causal_conv1d"] = Handler(CausalConv1dCpu);
  targets["jax_convbatch_causal_conv1d_grad"] = Handler(CausalConv1dGradCpu);
  targets["jax_convbatch_causal_conv1d_update"] =
      Handler(CausalConv1dUpdateCpu);
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
  return causal_conv1d::PartialSums(call);
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

// Floating-point operations a second that a loop of multiply-adds reaches on
// all threads, the best of a few short runs.
template <typename A>
double Peak() {
  const Kernels<A>& kernels = ChosenKernels<A>();
  constexpr int64_t kTurns = 100000;
  const int64_t tasks = 4 * ThreadCount();
  const double operations =
      4.0 * kernels.rows * kernels.vector * kTurns * tasks;
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    ParallelFor(tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) kernels.fma_loop(kTurns);
    });
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - start;
    best = std::max(best, operations / seconds.count());
  }
  return best;
}

double PeakOf(const std::string& dtype) {
  nb::gil_scoped_release release;
  return dtype == "float64" ? Peak<double>() : Peak<float>();
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
  m.def(
      "peak", &jax_convbatch::PeakOf, nb::arg("dtype"),
      "Operations a second of a loop of multiply-adds on all threads, in the\n"
      "arithmetic of `dtype`: what a convolution is measured against.");
  m.def("causal_conv1d_sums", &jax_convbatch::CausalSums, nb::arg("G"),
        nb::arg("n"), nb::arg("L"), nb::arg("C"), nb::arg("taps"),
        nb::arg("dilation"),
        "How many partial sums the gradient of causal_conv1d stores.");
  m.def("build_info", &jax_convbatch::BuildInfo,
        "What the module was built with.");
}
