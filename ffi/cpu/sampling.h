// SPDX-License-Identifier: Apache-2.0
// Columns that are read at real positions, and the transposes of that.
#pragma once

#include <cstdint>

#include "conv_geometry.h"

namespace jax_convbatch {

// Where a slice of samples is read; jax_convbatch/_deform/sampling.py says how
// cells and corners follow from offsets.
template <typename A>
struct Sampling {
  const int32_t* cells;  // [samples, P, Q, offset_groups, R, S]
  const A* corners;      // the same, then the weights of a cell's 4 corners
  int64_t offset_groups;
};

// columns (laid out as in im2col.h) = the pixels of x, by their weights.
template <typename A>
void SampleColumns(const ConvGeometry& g, const Sampling<A>& at,
                   int64_t samples, const A* x, A* columns);

// dx = what each pixel gave to the columns, outputs in order, then taps, then
// corners.
template <typename A>
void ScatterColumns(const ConvGeometry& g, const Sampling<A>& at,
                    int64_t samples, const A* columns, A* dx);

// dcorners = for each corner the sum over channels of pixel times column, in
// an order fixed by the number of channels; 0 where no pixel is read.
template <typename A>
void CornerGrads(const ConvGeometry& g, const Sampling<A>& at, int64_t samples,
                 const A* columns, const A* x, A* dcorners);

}  // namespace jax_convbatch
