// SPDX-License-Identifier: Apache-2.0
// The engine implicit_gemm's plans, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace jax_convbatch {

// Every way to run an operation, the one to take where nothing was measured
// first; empty where the engine does not support it. `geometry` is what
// jax_convbatch/_shapes/geometry.py passes to the handlers, `dtype` "bfloat16",
// "float16" or "float32" (multiplied as TF32 where there is one group, or
// depthwise filters have many taps, and it is not to be `exact`). Each is a
// dict: config (its name, see configs.h), path
// ("tiles", "halo tiles" or "strips": see conv.h; "direct tiles", "copied
// tiles", "sequence tiles", "planes" or "Toeplitz tiles" of several groups;
// "true f32 tiles", also "true f32 by six products, tiles"), preferred (whether
// it beats columns), workspace (bytes), blocks (thread blocks). `hopper`: of
// several groups; of one it is taken for granted.
nanobind::list ImplicitGemmPlans(nanobind::str op, nanobind::dict geometry,
                                 nanobind::str dtype, int multiprocessors,
                                 bool hopper, bool exact);

// The tiles of fprop or dgrad of one group that `tile_time.h` chooses among,
// with what it reckons with: a list of dicts of config, m, n, kernel (of
// TileKernel), products, boxes, tiles, stages, longest, bytes, transposed,
// later (see TileWork) and us.
nanobind::list ImplicitGemmTiles(nanobind::str op, nanobind::dict geometry,
                                 nanobind::str dtype, int multiprocessors);

// The configuration that fprop by one of them runs as where an epilogue
// follows: of a bias and relu at most (`plain`), and keeping its result's
// bitmask.
std::string ImplicitGemmLayerConfig(nanobind::dict geometry,
                                    nanobind::str dtype, nanobind::str config,
                                    bool plain, bool bitmask,
                                    int multiprocessors);

// How a norm, an activation and a convolution run in one kernel ("fprop"), or
// their gradient ("dgrad"), or None: a dict of tile_n, blocks, workspace
// (bytes, for sums) and preferred, see norm_act.h.
nanobind::object ImplicitGemmNormActPlan(nanobind::str op,
                                         nanobind::dict geometry,
                                         nanobind::str dtype,
                                         nanobind::str activation,
                                         int multiprocessors);

// How the products of sampled columns run in slices of so many samples, or None
// where cuBLAS should multiply: a dict of workspace (bytes), adds_bias (whether
// fprop does) and transposes, see pointwise_gemms.h. `geometry` is that of
// the convolution.
nanobind::object ImplicitGemmColumnPlan(nanobind::str op,
                                        nanobind::dict geometry,
                                        nanobind::str dtype, int64_t slice,
                                        int multiprocessors);

}  // namespace jax_convbatch
