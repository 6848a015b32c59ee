// Tensor maps whose boxes lie in shared memory as in global memory.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_BOX_MAP_H_
#define JAX_CONVBATCH_CUDA_HOPPER_BOX_MAP_H_

#include <cuda.h>

#include <initializer_list>

#include "cuda/hopper/conv.h"

namespace jax_convbatch::hopper {

// EncodeTiled of tensor_map.h, but for the swizzle.
bool EncodeBoxes(CUtensorMap* map, Type type, const void* data,
                 std::initializer_list<int64_t> sizes,
                 std::initializer_list<int> box);

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_HOPPER_BOX_MAP_H_
