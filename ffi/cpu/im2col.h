// Unrolling a sample into columns, and gathering columns back into a sample.
#ifndef JAX_CONVBATCH_CPU_IM2COL_H_
#define JAX_CONVBATCH_CPU_IM2COL_H_

#include <cstdint>

#include "conv_geometry.h"
#include "half.h"

namespace jax_convbatch {

// The columns of one sample are a matrix [O P Q, T R S C/groups] for each
// group, one after the other; samples follow each other.
inline int64_t ColumnsPerSample(const ConvGeometry& g) {
  return g.output_pixels() * g.taps() * g.C;
}

// columns = the columns of `samples` samples of x, zero where a tap reads
// padding or a hole of a dilated input.
template <typename T>
void Unroll(const ConvGeometry& g, int64_t samples, const T* x,
            Compute<T>* columns);

// dx = for each input pixel the sum of the columns' entries that were read from
// it, taps in order t, r, s: the transpose of Unroll, without atomics because
// each pixel gathers what is its own.
template <typename T>
void Gather(const ConvGeometry& g, int64_t samples, const Compute<T>* columns,
            T* dx);

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_IM2COL_H_
