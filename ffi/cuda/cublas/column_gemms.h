// SPDX-License-Identifier: Apache-2.0
// The matrix products of slices of samples over their columns, whichever way
// the columns were made, with one algorithm for every slice.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/cublas/conv_gemms.h"
#include "cuda/cublas/cublas.h"
#include "ffi_checks.h"

namespace jax_convbatch {

inline const char* At(const void* base, int64_t bytes) {
  return static_cast<const char*>(base) + bytes;
}
inline char* At(void* base, int64_t bytes) {
  return static_cast<char*>(base) + bytes;
}

// Calls body(first, samples) for each slice of the batch until one fails.
template <typename Body>
ffi::Error ForEachSlice(const ConvGeometry& g, int64_t slice, Body body) {
  for (int64_t first = 0; first < g.N; first += slice) {
    JCB_RETURN_IF_ERROR(body(first, std::min(slice, g.N - first)));
  }
  return ffi::Error::Success();
}

class ColumnGemms {
 public:
  ColumnGemms(const Products& products, const ConvGeometry& g)
      : products_(products), g_(g) {}

  // To be called first; outside of captures once for each geometry.
  ffi::Error FindAlgorithm();

  // fprop: y from columns and w. dgrad: columns from dy and w.
  ffi::Error Run(cudaStream_t stream, int64_t samples, const void* a,
                 const void* b, void* d) const;

  // What wgrad needs besides columns.
  struct WgradSpace {
    WgradSpace(const ConvGeometry& g, int64_t slice,
               const Arithmetic& arithmetic, Workspace& workspace)
        : partials(workspace.Take<char>(slice * g.w_size() *
                                        arithmetic.accumulator_bytes)),
          accumulator(
              workspace.Take<char>(g.w_size() * arithmetic.accumulator_bytes)) {
    }
    void *partials, *accumulator;
  };

  // Adds a slice's samples to dw, in order; the slices in order too.
  ffi::Error Wgrad(cudaStream_t stream, int64_t first, int64_t samples,
                   ffi::DataType dtype, const void* columns, const void* dy,
                   const WgradSpace& space, void* dw) const;

 private:
  template <typename Status>
  ffi::Error Check(Status status) const;

  Products products_;
  const ConvGeometry& g_;
  GemmAlgorithm algorithm_{};
};

}  // namespace jax_convbatch
