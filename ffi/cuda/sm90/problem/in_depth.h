// SPDX-License-Identifier: Apache-2.0
#ifndef JAX_CONVBATCH_CUDA_SM90_PROBLEM_IN_DEPTH_H_
#define JAX_CONVBATCH_CUDA_SM90_PROBLEM_IN_DEPTH_H_

#include <type_traits>

namespace jax_convbatch::hopper {

// A kernel's configuration, of three spatial axes. The others are not k3d.
template <typename Config>
struct InDepth : Config {
  static constexpr bool k3d = true;
};

template <typename Config, bool k3d>
using MaybeInDepth = std::conditional_t<k3d, InDepth<Config>, Config>;

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_PROBLEM_IN_DEPTH_H_
