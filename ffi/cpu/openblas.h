// SPDX-License-Identifier: Apache-2.0
// What is OpenBLAS's alone: keeping it on the calling thread while this
// engine's threads call it, and its products of small matrices.
#pragma once

#include <cstdint>

namespace jax_convbatch {

// While one of these lives, OpenBLAS runs every product on the thread that asks
// for it. Its own threads meet at spinning barriers, which stand still whenever
// another program takes a core (measured: 50 times slower with two busy cores),
// and they are a second pool beside ours. The setting is OpenBLAS's only one
// and belongs to the process: a product of jax.scipy at the same moment runs on
// one thread too, and nothing else changes.
class OneThreadBlas {
 public:
  OneThreadBlas();
  ~OneThreadBlas();
  OneThreadBlas(const OneThreadBlas&) = delete;
  OneThreadBlas& operator=(const OneThreadBlas&) = delete;

  // Whether the BLAS could be told so. Otherwise its threads are its own
  // affair, and it should be called from one thread at a time.
  static bool Possible();
};

// The most multiply-adds of a product A B that OpenBLAS forms from the matrices
// as they lie; 0 where it first copies all of both into the order that its
// kernel wants, as it does for other processors than those with AVX-512.
int64_t WorkWithoutPacking();

}  // namespace jax_convbatch
