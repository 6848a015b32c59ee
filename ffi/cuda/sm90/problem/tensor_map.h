// SPDX-License-Identifier: Apache-2.0
// Tensor maps: what TMA knows about a tensor in global memory and the boxes it
// moves. Encoded on the host, passed to kernels by value.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

#include "cuda/sm90/problem/conv.h"

namespace jax_convbatch::hopper {

// A channels-last tensor [n, h, w, c] walked pixel by pixel. Base pixels run
// over [lower, size - 1 + upper] in steps of `stride`, w fastest, then h, then
// n; a box is `pixels` of them with 128 bytes of channels
// each. What lies outside the
// tensor reads as zero and is not written.
struct Im2colWalk {
  int64_t n, h, w, c;
  int64_t lower_h, lower_w, upper_h, upper_w;
  int stride_h, stride_w;
  int pixels;
  // More than one: the outermost coordinate is a group, and what lies outside
  // of its channels is outside of the tensor.
  int64_t groups = 1;
};

// Loads of Type::kTf32 round to the nearest TF32 on the way.
enum class Copy { kLoad, kStore };

// Whether TMA can express the walk.
bool IsEncodable(Type type, const Im2colWalk& walk);

// Both return false where the driver refuses. Boxes are swizzled by 128 bytes.
// `sizes`, `strides` and `box` are innermost first; strides are in elements,
// without the innermost, which is 1. EncodeTiled's tensors are dense.
bool EncodeIm2col(CUtensorMap* map, Type type, const void* data,
                  const Im2colWalk& walk, Copy copy = Copy::kLoad);
bool EncodeTiled(CUtensorMap* map, Type type, const void* data,
                 std::initializer_list<int64_t> sizes,
                 std::initializer_list<int> box, Copy copy = Copy::kLoad);
bool EncodeStrided(CUtensorMap* map, Type type, const void* data,
                   std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t> strides,
                   std::initializer_list<int> box, Copy copy = Copy::kLoad);

}  // namespace jax_convbatch::hopper
