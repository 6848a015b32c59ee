// SPDX-License-Identifier: Apache-2.0
// A convolution as the row-streaming kernels see it. Host only.
#pragma once

#include <cstdint>

#include "conv_geometry.h"
#include "cuda/common/most_shared.h"
#include "cuda/sm90/kernels/row_streaming/row_streaming_plan.h"

namespace jax_convbatch::hopper {

// One axis. Outputs come in patches of `step`; patch p reads inputs p - offset,
// p - offset + 1, ..., `taps` of them. From input `i` of those, output a of the
// patch takes filter tap first + a + i * tap_step, where the filter has that.
struct RowStreamingAxis {
  int taps, offset, step, patches, size;  // size: of the output
  int filter, first, tap_step;
};

struct RowStreamingShape {
  RowStreamingAxis h, w;
  int64_t in_h, in_w, in_c, out_c;

  // Of a patch.
  int64_t values() const { return int64_t{h.step} * w.step * out_c; }
  // Rows of patches at a time that there is a kernel for, or 0.
  int rows() const {
    for (const int rows : {1, 2, 4, 8}) {
      if (h.taps <= rows && values() <= 64 / rows) return rows;
    }
    return 0;
  }
  int64_t channel_blocks() const { return (in_c + 63) / 64; }
  int64_t shared_bytes(int stages) const {
    return 1024 +
           int64_t{kRowStreamingConsumers} * stages * kRowStreamingStageBytes +
           w.taps * channel_blocks() * (64 * 128);
  }
  int stages() const {
    return shared_bytes(kRowStreamingStages) <= kMostShared
               ? kRowStreamingStages
               : kRowStreamingFewStages;
  }
};

RowStreamingShape FpropRowStreaming(const ConvGeometry& g);
RowStreamingShape DgradRowStreaming(const ConvGeometry& g);

}  // namespace jax_convbatch::hopper
