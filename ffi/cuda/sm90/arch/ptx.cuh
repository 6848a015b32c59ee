// SPDX-License-Identifier: Apache-2.0
// The Hopper instructions that the convolution kernels use, one small function
// each, by kind. Addresses of shared memory are 32-bit, as the instructions
// take them. Products are in wgmma.cuh, bulk copies in bulk_copy.cuh, launches
// of dependents in dependent_launch.cuh.
#pragma once

#include "cuda/sm90/arch/barriers.cuh"
#include "cuda/sm90/arch/clusters.cuh"
#include "cuda/sm90/arch/registers.cuh"
#include "cuda/sm90/arch/tensor_copies.cuh"
