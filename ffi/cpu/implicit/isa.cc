// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels.h"

namespace jax_convbatch {

template <>
const Kernels<float> KernelTables<float>::kPortable;
template <>
const Kernels<double> KernelTables<double>::kPortable;
#ifdef __x86_64__
template <>
const Kernels<float> KernelTables<float>::kAvx2;
template <>
const Kernels<double> KernelTables<double>::kAvx2;
template <>
const Kernels<float> KernelTables<float>::kAvx512;
template <>
const Kernels<double> KernelTables<double>::kAvx512;
#endif

namespace {

struct Choice {
  const char* name;
  bool there;
  const Kernels<float>* f32;
  const Kernels<double>* f64;
};

const Choice* chosen = nullptr;

}  // namespace

const char* ChooseKernels() {
  // Best first.
  static const Choice choices[] = {
#ifdef __x86_64__
      {"avx512",
       __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"),
       &KernelTables<float>::kAvx512, &KernelTables<double>::kAvx512},
      {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
       &KernelTables<float>::kAvx2, &KernelTables<double>::kAvx2},
#endif
      {"portable", true, &KernelTables<float>::kPortable,
       &KernelTables<double>::kPortable},
  };
  const char* asked = std::getenv("JAX_CONVBATCH_ISA");
  if (asked && !*asked) asked = nullptr;
  for (const Choice& choice : choices) {
    if (asked && std::strcmp(asked, choice.name) != 0) continue;
    if (choice.there) {
      chosen = &choice;
      return nullptr;
    }
    if (asked) {
      return "JAX_CONVBATCH_ISA names instructions that this processor lacks";
    }
  }
  static const std::string problem = "JAX_CONVBATCH_ISA is '" +
                                     std::string(asked ? asked : "") +
                                     "' and must be avx512, avx2 or portable";
  return problem.c_str();
}

const char* InstructionSet() { return chosen->name; }

template <>
const Kernels<float>& ChosenKernels<float>() {
  return *chosen->f32;
}
template <>
const Kernels<double>& ChosenKernels<double>() {
  return *chosen->f64;
}

}  // namespace jax_convbatch
