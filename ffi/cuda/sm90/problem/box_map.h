// SPDX-License-Identifier: Apache-2.0
// Tensor maps whose boxes lie otherwise in shared memory than tensor_map.h's.
#pragma once

#include <cuda.h>

#include <initializer_list>

#include "cuda/sm90/problem/tensor_map.h"

namespace jax_convbatch::hopper {

// EncodeTiled of tensor_map.h, but for the swizzle.
bool EncodeBoxes(CUtensorMap* map, Type type, const void* data,
                 std::initializer_list<int64_t> sizes,
                 std::initializer_list<int> box);
// EncodeIm2col of boxes of fewer channels, 16 or 32 of 16 bits.
bool EncodeNarrowIm2col(CUtensorMap* map, Type type, const void* data,
                        const Im2colWalk& walk, int channels);
// EncodeTiled whose lines are 32 bytes.
bool EncodeQuarterLines(CUtensorMap* map, Type type, const void* data,
                        std::initializer_list<int64_t> sizes,
                        std::initializer_list<int> box);
// With lines of 64 bytes, swizzled by as many.
bool EncodeHalfLines(CUtensorMap* map, Type type, const void* data,
                     std::initializer_list<int64_t> sizes,
                     std::initializer_list<int> box, Copy copy);
// EncodeStrided with such lines.
bool EncodeStridedHalfLines(CUtensorMap* map, Type type, const void* data,
                            std::initializer_list<int64_t> sizes,
                            std::initializer_list<int64_t> strides,
                            std::initializer_list<int> box);

}  // namespace jax_convbatch::hopper
