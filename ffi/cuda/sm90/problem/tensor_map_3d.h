// SPDX-License-Identifier: Apache-2.0
// Tensor maps of three spatial axes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

// A tensor [n, d, h, w, c]: as Im2colWalk, whose n are images of d slices. Base
// pixels run over the slices after the rows.
struct Walk3d {
  Im2colWalk plane;
  int64_t d, lower_d, upper_d;
  int stride_d;
};

// As IsEncodable, EncodeIm2col and EncodeNarrowIm2col of tensor_map.h.
bool IsEncodable(Type type, const Walk3d& walk);
bool Encode3dIm2col(CUtensorMap* map, Type type, const void* data,
                    const Walk3d& walk, Copy copy);
bool EncodeNarrow3dIm2col(CUtensorMap* map, Type type, const void* data,
                          const Walk3d& walk, int channels);

}  // namespace jax_convbatch::hopper
