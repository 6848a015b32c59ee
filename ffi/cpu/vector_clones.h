// SPDX-License-Identifier: Apache-2.0
// Inner loops compiled for each vector length, chosen when the module loads.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && \
    !defined(__clang__)
#define JCB_VECTOR_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define JCB_VECTOR_CLONES
#endif
