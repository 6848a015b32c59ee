#include "cuda/hopper/tensor_map.h"

#include <cuda_runtime_api.h>

#include "cuda/hopper/box_map.h"

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

// The engine's range depends on the rank.
bool InCornerRange(int64_t corner, int64_t groups) {
  const int64_t range = groups > 1 ? 16 : 128;
  return -range <= corner && corner < range;
}

bool InStrideRange(int stride) { return 1 <= stride && stride <= 8; }

}  // namespace

bool IsEncodable(Type type, const Im2colWalk& walk) {
  constexpr int64_t kMaxSize = int64_t{1} << 32;
  constexpr double kMaxStride = int64_t{1} << 40;
  return walk.c * ElementBytes(type) % 16 == 0 && walk.n <= kMaxSize &&
         walk.h <= kMaxSize && walk.w <= kMaxSize && walk.c <= kMaxSize &&
         1.0 * walk.h * walk.w * walk.c * ElementBytes(type) < kMaxStride &&
         InCornerRange(walk.lower_h, walk.groups) &&
         InCornerRange(walk.lower_w, walk.groups) &&
         InCornerRange(walk.upper_h, walk.groups) &&
         InCornerRange(walk.upper_w, walk.groups) &&
         InStrideRange(walk.stride_h) && InStrideRange(walk.stride_w);
}

bool EncodeIm2col(CUtensorMap* map, Type type, const void* data,
                  const Im2colWalk& walk, Copy copy) {
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeIm2col)>(
      "cuTensorMapEncodeIm2col");
  if (encode == nullptr) return false;
  const auto u64 = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {u64(walk.c / walk.groups), u64(walk.w),
                              u64(walk.h), u64(walk.n), u64(walk.groups)};
  cuuint64_t strides[4];
  strides[0] = u64(walk.c * ElementBytes(type));
  strides[1] = strides[0] * sizes[1];
  strides[2] = strides[1] * sizes[2];
  strides[3] = u64(walk.c / walk.groups * ElementBytes(type));
  const int lower[] = {static_cast<int>(walk.lower_w),
                       static_cast<int>(walk.lower_h), 0};
  const int upper[] = {static_cast<int>(walk.upper_w),
                       static_cast<int>(walk.upper_h), 0};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(walk.stride_w),
                              static_cast<cuuint32_t>(walk.stride_h), 1, 1};
  return encode(map, MapType(type, copy), walk.groups > 1 ? 5 : 4,
                const_cast<void*>(data), sizes, strides, lower, upper,
                128 / ElementBytes(type), walk.pixels, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
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
