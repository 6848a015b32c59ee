// SPDX-License-Identifier: Apache-2.0
// What the launches of the direct kernels share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cuda/common/dtypes.h"
#include "cuda/common/launch.cuh"
#include "cuda/sm80/direct/direct.h"
#include "cuda/sm80/direct/staging.cuh"
#include "cuda/sm80/direct/tiling.h"

namespace jax_convbatch::direct {

// Calls f(TypeTag<T>).
template <typename F>
cudaError_t DispatchType(Type type, F&& f) {
  switch (type) {
    case Type::kF32:
    case Type::kTf32:
      return f(TypeTag<float>());
    case Type::kBf16:
      return f(TypeTag<__nv_bfloat16>());
    default:
      return f(TypeTag<__half>());
  }
}

inline TileGrid MakeGrid(const Walks& walks, const Plan& plan, int64_t batch) {
  auto count = [](const AxisWalk& axis, int tile) {
    return (axis.class_size() + tile - 1) / tile;
  };
  const int across = count(walks.w, plan.tile_w);
  const int down = count(walks.h, plan.tile_h);
  return {FastDivmod<uint32_t>(across), FastDivmod<uint32_t>(down), plan.tile_h,
          plan.tile_w, static_cast<int>(batch * across * down)};
}

}  // namespace jax_convbatch::direct
