// SPDX-License-Identifier: Apache-2.0
// What the host tells the kernels of depthwise_toeplitz.cuh.
#pragma once

namespace jax_convbatch::direct {

// out[a, b] = sum over i, j of in[a + i - pad_h, b + j - pad_w] filter[i, j],
// of each channel of each sample: fprop, and dgrad with the filter `flipped`.
// In wgrad dy is the filter, of each sample another one, and out is dw.
struct ToeplitzProblem {
  const void *in, *filter;
  void* out;  // wgrad: partial sums, [worker][tap][channel]
  int in_h, in_w, out_h, out_w, filter_h, filter_w;
  int pad_h, pad_w, channels;
  bool flipped;
  // Rows of a part of the filter, and its columns: all of them but in wgrad.
  int part_h, part_w;
  // Items of a range of channels, that `workers` blocks share: tiles of
  // outputs, or in wgrad parts of dy, of each sample `down` x `across`.
  int items, down, across, workers, channel_tiles;
};

}  // namespace jax_convbatch::direct
