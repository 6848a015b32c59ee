// Copies whose outermost coordinate is a group (Im2colWalk::groups).
#ifndef JAX_CONVBATCH_CUDA_HOPPER_GROUP_COPIES_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_GROUP_COPIES_CUH_

#include "cuda/hopper/ptx.cuh"

namespace jax_convbatch::hopper {

__device__ __forceinline__ void LoadGroupIm2col(uint32_t to,
                                                const CUtensorMap& map,
                                                uint32_t barrier, int c, int w,
                                                int h, int n, int group,
                                                int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col"
      ".mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2], "
      "{%8, %9, %10};" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "r"(group),
      "h"(static_cast<uint16_t>(offset_w)),
      "h"(static_cast<uint16_t>(offset_h)), "h"(uint16_t{0})
      : "memory");
}

__device__ __forceinline__ void StoreGroupIm2col(const CUtensorMap& map,
                                                 uint32_t from, int c, int w,
                                                 int h, int n, int group) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.im2col_no_offs.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(c), "r"(w), "r"(h), "r"(n), "r"(group)
      : "memory");
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_GROUP_COPIES_CUH_
