// SPDX-License-Identifier: Apache-2.0
// What the Python module says of the engine cudnn.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace jax_convbatch {

// Loads cuDNN from a file, or by its soname where `path` is empty: why it
// cannot be used, or "".
std::string LoadCudnn(const std::string& path);

// "9.19.0", or "" where it is not loaded.
std::string CudnnVersion();

// [{"config", "workspace", "compiled", "depends_on_batch"}, ...], or why there
// is nothing. `layer` holds the fields of an epilogue, or is empty.
nanobind::object CudnnPlans(const std::string& op,
                            const nanobind::dict& geometry,
                            const std::string& dtype,
                            const std::string& out_dtype, bool tf32,
                            const nanobind::dict& layer,
                            int64_t workspace_limit, int most);

}  // namespace jax_convbatch
