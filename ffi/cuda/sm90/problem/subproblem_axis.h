// SPDX-License-Identifier: Apache-2.0
// One axis of what a sub-problem of the output reads and writes. Host only.
#pragma once

#include <cstdint>

#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// Of `in` inputs and `out` outputs.
SubproblemAxis FpropAxis(int64_t in, int64_t out, int64_t taps, int64_t stride,
                         int64_t pad, int64_t dilation);

// Of inputs `residue`, residue + stride, ... of `in`. Input i takes part in
// output (i + pad - r dilation) / stride for those taps r that divide; they are
// visited from the last, which reads first.
SubproblemAxis DgradAxis(int64_t in, int64_t out, int64_t taps, int64_t stride,
                         int64_t pad, int64_t dilation, int64_t residue);

}  // namespace jax_convbatch::hopper
