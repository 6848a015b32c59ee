// The Hopper instructions that the convolution kernels use, one small function
// each, by kind. Addresses of shared memory are 32-bit, as the instructions
// take them. Products are in wgmma.cuh, bulk copies in bulk_copy.cuh, launches
// of dependents in cuda/dependent_launch.cuh.
#ifndef JAX_CONVBATCH_CUDA_HOPPER_PTX_CUH_
#define JAX_CONVBATCH_CUDA_HOPPER_PTX_CUH_

#include "cuda/hopper/barriers.cuh"
#include "cuda/hopper/clusters.cuh"
#include "cuda/hopper/registers.cuh"
#include "cuda/hopper/tensor_copies.cuh"

#endif  // JAX_CONVBATCH_CUDA_HOPPER_PTX_CUH_
