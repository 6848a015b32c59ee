// SPDX-License-Identifier: Apache-2.0
// Columns that are read at real positions, and the transposes of that.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/positions.h"
#include "cuda/common/transposition.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convbatch {

// Where a slice of samples is read.
struct Sampling {
  Positions positions;
  int64_t offset_groups;
};

// One entry each tap of each output pixel in each offset group.
inline int64_t Entries(const ConvGeometry& g, int64_t offset_groups,
                       int64_t samples) {
  return samples * g.output_pixels() * g.taps() * offset_groups;
}

// Cells of a sample, in all offset groups.
inline int64_t CellsPerSample(const ConvGeometry& g, int64_t offset_groups) {
  return offset_groups * (g.H + 1) * (g.W + 1);
}

// The most samples whose entries, cells and columns are counted in 31 bits; 0
// where one sample's, or its pixels, are not.
inline int64_t MaxSampled(const ConvGeometry& g, int64_t offset_groups) {
  return INT32_MAX /
         std::max({g.output_pixels() * g.taps() * g.C, g.input_pixels() * g.C,
                   CellsPerSample(g, offset_groups) + 1});
}

// columns (laid out as `Columns` of conv_gemms.h says, in the dtype of x) = the
// pixels of x, by their weights. A matrix is transposed besides, at no cost:
// the first-level cache is what sampling waits for.
cudaError_t SampleColumns(cudaStream_t stream, const ConvGeometry& g,
                          const Sampling& at, int64_t samples,
                          xla::ffi::DataType dtype, const void* x,
                          void* columns, const Transposition& matrix = {});

// Of cells: dcorners = for each corner the sum over channels of pixel times
// column, in an order fixed by the number of channels; 0 where no pixel is
// read. x has the given dtype, dcolumns and dcorners its accumulator.
cudaError_t CornerGrads(cudaStream_t stream, const ConvGeometry& g,
                        const Sampling& at, int64_t samples,
                        xla::ffi::DataType dtype, const void* x,
                        const void* dcolumns, void* dcorners);

// The entries of a slice sorted by cell, those of one cell in their order.
struct SortedEntries {
  int32_t* start;  // of each cell's entries, in order; and the end of the last
  int32_t* row;    // of the columns: (sample, output, tap)
  void* corners;   // the weights of the 4 corners
};

// What sorting needs besides.
struct SortSpace {
  uint32_t *keys[2], *values[2];
  void* temporary;
};

// Bytes of SortSpace::temporary; jax_convbatch/_deform/plan.py counts the same.
inline int64_t SortBytes(int64_t entries) { return entries + (64 << 10); }

// Of cells and corners.
cudaError_t SortEntries(cudaStream_t stream, const ConvGeometry& g,
                        const Sampling& at, int64_t samples,
                        xla::ffi::DataType dtype, const SortSpace& space,
                        const SortedEntries& sorted);

// dx = for each pixel the sum of what it gave to the columns: the four cells
// that it is a corner of in order, entries in order. dx has the given dtype,
// dcolumns its accumulator.
cudaError_t GatherColumns(cudaStream_t stream, const ConvGeometry& g,
                          const SortedEntries& sorted, int64_t offset_groups,
                          int64_t samples, xla::ffi::DataType dtype,
                          const void* dcolumns, void* dx);

}  // namespace jax_convbatch
