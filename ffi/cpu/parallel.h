// SPDX-License-Identifier: Apache-2.0
// A small pool of threads for the loops around the BLAS.
#pragma once

#include <cstdint>
#include <functional>

namespace jax_convbatch {

// Threads that ParallelFor uses, the caller included: the processors that the
// process may run on, or JAX_CONVBATCH_THREADS where that is less.
int ThreadCount();

// Calls body(begin, end) over disjoint ranges that cover [0, count), each of
// about `grain` items, on several threads, and returns when all are done. The
// ranges must not depend on one another. Where another thread is using the pool
// the caller does everything itself, so nobody waits for anybody.
void ParallelFor(int64_t count, int64_t grain,
                 const std::function<void(int64_t, int64_t)>& body);

}  // namespace jax_convbatch
