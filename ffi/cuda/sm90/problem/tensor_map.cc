// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/problem/tensor_map.h"

#include <cuda_runtime_api.h>

#include "cuda/sm90/problem/box_map.h"
#include "cuda/sm90/problem/tensor_map_3d.h"

namespace jax_convbatch::hopper {
namespace {

constexpr int kMaxRank = 5;

// The driver's function, found at run time: nothing links with libcuda.
template <typename Function>
Function* DriverFunction(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      name, &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) {
    return nullptr;
  }
  return reinterpret_cast<Function*>(found);
}

CUtensorMapDataType MapType(Type type, Copy copy) {
  switch (type) {
    case Type::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Type::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default:
      return copy == Copy::kLoad ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

bool Encode(CUtensorMap* map, CUtensorMapDataType type, int element_bytes,
            const void* data, size_t rank, const int64_t* sizes,
            const int64_t* strides, const int* box,
            CUtensorMapSwizzle swizzle) {
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeTiled)>(
      "cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  cuuint64_t extents[kMaxRank], bytes[kMaxRank];
  cuuint32_t boxes[kMaxRank], steps[kMaxRank];
  for (size_t i = 0; i < rank; ++i) {
    extents[i] = static_cast<cuuint64_t>(sizes[i]);
    boxes[i] = static_cast<cuuint32_t>(box[i]);
    steps[i] = 1;
    if (i + 1 < rank) {
      bytes[i] = static_cast<cuuint64_t>(strides[i] * element_bytes);
    }
  }
  return encode(map, type, static_cast<cuuint32_t>(rank),
                const_cast<void*>(data), extents, bytes, boxes, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// The same of a dense tensor.
bool EncodeDense(CUtensorMap* map, Type type, Copy copy, const void* data,
                 std::initializer_list<int64_t> sizes,
                 std::initializer_list<int> box, CUtensorMapSwizzle swizzle) {
  int64_t strides[kMaxRank];
  int64_t elements = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    elements *= sizes.begin()[i];
    strides[i] = elements;
  }
  return Encode(map, MapType(type, copy), ElementBytes(type), data,
                sizes.size(), sizes.begin(), strides, box.begin(), swizzle);
}

// The engine's range depends on the map's rank.
bool InCornerRange(int64_t corner, int rank) {
  const int64_t range = rank == 5 ? 16 : 128;
  return -range <= corner && corner < range;
}

bool InStrideRange(int stride) { return 1 <= stride && stride <= 8; }

// Of a walk's h and w in a map of so many coordinates.
bool IsPlaneEncodable(Type type, const Im2colWalk& walk, int rank) {
  constexpr int64_t kMaxSize = int64_t{1} << 32;
  constexpr double kMaxStride = int64_t{1} << 40;
  return walk.c * ElementBytes(type) % 16 == 0 && walk.n <= kMaxSize &&
         walk.h <= kMaxSize && walk.w <= kMaxSize && walk.c <= kMaxSize &&
         1.0 * walk.h * walk.w * walk.c * ElementBytes(type) < kMaxStride &&
         InCornerRange(walk.lower_h, rank) &&
         InCornerRange(walk.lower_w, rank) &&
         InCornerRange(walk.upper_h, rank) &&
         InCornerRange(walk.upper_w, rank) && InStrideRange(walk.stride_h) &&
         InStrideRange(walk.stride_w);
}

// Sizes, bytes from one to the next, corners and steps of w, h and what follows
// (`steps` begins with the channels').
bool Encode(CUtensorMap* map, Type type, Copy copy, const void* data, int rank,
            const cuuint64_t* sizes, const cuuint64_t* strides,
            const int* lower, const int* upper, int pixels,
            const cuuint32_t* steps, int channels, CUtensorMapSwizzle swizzle) {
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeIm2col)>(
      "cuTensorMapEncodeIm2col");
  if (encode == nullptr) return false;
  return encode(map, MapType(type, copy), rank, const_cast<void*>(data), sizes,
                strides, lower, upper, channels, pixels, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

cuuint64_t U64(int64_t n) { return static_cast<cuuint64_t>(n); }

}  // namespace

bool IsEncodable(Type type, const Im2colWalk& walk) {
  return IsPlaneEncodable(type, walk, walk.groups > 1 ? 5 : 4);
}

bool IsEncodable(Type type, const Walk3d& walk) {
  constexpr double kMaxStride = int64_t{1} << 40;
  const Im2colWalk& plane = walk.plane;
  return IsPlaneEncodable(type, plane, 5) &&
         1.0 * walk.d * plane.h * plane.w * plane.c * ElementBytes(type) <
             kMaxStride &&
         InCornerRange(walk.lower_d, 5) && InCornerRange(walk.upper_d, 5) &&
         InStrideRange(walk.stride_d);
}

namespace {

// By boxes of so many channels, which are as many bytes as the swizzle has.
bool EncodeWalk(CUtensorMap* map, Type type, const void* data,
                const Im2colWalk& walk, Copy copy, int channels,
                CUtensorMapSwizzle swizzle) {
  const cuuint64_t sizes[] = {U64(walk.c / walk.groups), U64(walk.w),
                              U64(walk.h), U64(walk.n), U64(walk.groups)};
  cuuint64_t strides[4];
  strides[0] = U64(walk.c * ElementBytes(type));
  strides[1] = strides[0] * sizes[1];
  strides[2] = strides[1] * sizes[2];
  strides[3] = U64(walk.c / walk.groups * ElementBytes(type));
  const int lower[] = {static_cast<int>(walk.lower_w),
                       static_cast<int>(walk.lower_h), 0};
  const int upper[] = {static_cast<int>(walk.upper_w),
                       static_cast<int>(walk.upper_h), 0};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(walk.stride_w),
                              static_cast<cuuint32_t>(walk.stride_h), 1, 1};
  return Encode(map, type, copy, data, walk.groups > 1 ? 5 : 4, sizes, strides,
                lower, upper, walk.pixels, steps, channels, swizzle);
}

bool EncodeWalk3d(CUtensorMap* map, Type type, const void* data,
                  const Walk3d& walk, Copy copy, int channels,
                  CUtensorMapSwizzle swizzle) {
  const Im2colWalk& plane = walk.plane;
  const cuuint64_t sizes[] = {U64(plane.c), U64(plane.w), U64(plane.h),
                              U64(walk.d), U64(plane.n)};
  cuuint64_t strides[4];
  strides[0] = U64(plane.c * ElementBytes(type));
  for (int i = 1; i < 4; ++i) strides[i] = strides[i - 1] * sizes[i];
  const int lower[] = {static_cast<int>(plane.lower_w),
                       static_cast<int>(plane.lower_h),
                       static_cast<int>(walk.lower_d)};
  const int upper[] = {static_cast<int>(plane.upper_w),
                       static_cast<int>(plane.upper_h),
                       static_cast<int>(walk.upper_d)};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(plane.stride_w),
                              static_cast<cuuint32_t>(plane.stride_h),
                              static_cast<cuuint32_t>(walk.stride_d), 1};
  return Encode(map, type, copy, data, 5, sizes, strides, lower, upper,
                plane.pixels, steps, channels, swizzle);
}

// Of lines of so many channels of 16 bits.
CUtensorMapSwizzle NarrowSwizzle(int channels) {
  return channels == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
}

}  // namespace

bool EncodeIm2col(CUtensorMap* map, Type type, const void* data,
                  const Im2colWalk& walk, Copy copy) {
  return EncodeWalk(map, type, data, walk, copy, 128 / ElementBytes(type),
                    CU_TENSOR_MAP_SWIZZLE_128B);
}

bool EncodeNarrowIm2col(CUtensorMap* map, Type type, const void* data,
                        const Im2colWalk& walk, int channels) {
  return EncodeWalk(map, type, data, walk, Copy::kLoad, channels,
                    NarrowSwizzle(channels));
}

bool EncodeQuarterLines(CUtensorMap* map, Type type, const void* data,
                        std::initializer_list<int64_t> sizes,
                        std::initializer_list<int> box) {
  return EncodeDense(map, type, Copy::kLoad, data, sizes, box,
                     CU_TENSOR_MAP_SWIZZLE_32B);
}

bool Encode3dIm2col(CUtensorMap* map, Type type, const void* data,
                    const Walk3d& walk, Copy copy) {
  return EncodeWalk3d(map, type, data, walk, copy, 128 / ElementBytes(type),
                      CU_TENSOR_MAP_SWIZZLE_128B);
}

bool EncodeNarrow3dIm2col(CUtensorMap* map, Type type, const void* data,
                          const Walk3d& walk, int channels) {
  return EncodeWalk3d(map, type, data, walk, Copy::kLoad, channels,
                      NarrowSwizzle(channels));
}

bool EncodeTiled(CUtensorMap* map, Type type, const void* data,
                 std::initializer_list<int64_t> sizes,
                 std::initializer_list<int> box, Copy copy) {
  return EncodeDense(map, type, copy, data, sizes, box,
                     CU_TENSOR_MAP_SWIZZLE_128B);
}

bool EncodeBoxes(CUtensorMap* map, Type type, const void* data,
                 std::initializer_list<int64_t> sizes,
                 std::initializer_list<int> box) {
  return EncodeDense(map, type, Copy::kLoad, data, sizes, box,
                     CU_TENSOR_MAP_SWIZZLE_NONE);
}

bool EncodeHalfLines(CUtensorMap* map, Type type, const void* data,
                     std::initializer_list<int64_t> sizes,
                     std::initializer_list<int> box, Copy copy) {
  return EncodeDense(map, type, copy, data, sizes, box,
                     CU_TENSOR_MAP_SWIZZLE_64B);
}

bool EncodeStrided(CUtensorMap* map, Type type, const void* data,
                   std::initializer_list<int64_t> sizes,
                   std::initializer_list<int64_t> strides,
                   std::initializer_list<int> box, Copy copy) {
  return Encode(map, MapType(type, copy), ElementBytes(type), data,
                sizes.size(), sizes.begin(), strides.begin(), box.begin(),
                CU_TENSOR_MAP_SWIZZLE_128B);
}

bool EncodeStridedHalfLines(CUtensorMap* map, Type type, const void* data,
                            std::initializer_list<int64_t> sizes,
                            std::initializer_list<int64_t> strides,
                            std::initializer_list<int> box) {
  return Encode(map, MapType(type, Copy::kLoad), ElementBytes(type), data,
                sizes.size(), sizes.begin(), strides.begin(), box.begin(),
                CU_TENSOR_MAP_SWIZZLE_64B);
}

}  // namespace jax_convbatch::hopper
