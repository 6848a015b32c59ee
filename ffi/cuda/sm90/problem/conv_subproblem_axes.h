// SPDX-License-Identifier: Apache-2.0
// What a sub-problem of the output is told of its axes. Host only.
#pragma once

#include <cstdint>

#include "cuda/sm90/problem/conv_problem.h"
#include "cuda/sm90/problem/subproblems.h"

namespace jax_convbatch::hopper {

// All of a sub-problem but its maps and where threads store.
inline void SetAxes(const SubproblemAxes& axes, const Activations& in,
                    int channel_blocks, ConvSubproblem* sub) {
  const SubproblemAxis &h = axes.h, &w = axes.w, &d = axes.d;
  sub->taps_d = d.taps;
  sub->taps_h = h.taps;
  sub->taps_w = w.taps;
  sub->rows = static_cast<int>(h.count);
  sub->cols = static_cast<int>(w.count);
  sub->slices = static_cast<int>(d.count);
  sub->pixels = static_cast<int>(in.n * axes.pixels());
  sub->slice_iterations = h.taps.count * w.taps.count * channel_blocks;
  sub->iterations = d.taps.count * sub->slice_iterations;
  sub->input_slices = static_cast<int>(in.d);
  sub->input_h = static_cast<int>(h.input);
  sub->input_w = static_cast<int>(w.input);
  sub->input_d = static_cast<int>(d.input);
  sub->input_step_d = d.input_step;
  sub->input_step_h = h.input_step;
  sub->input_step_w = w.input_step;
  sub->output_h = static_cast<int>(h.output);
  sub->output_w = static_cast<int>(w.output);
  sub->output_d = static_cast<int>(d.output);
  sub->output_step_d = d.output_step;
  sub->output_step_h = h.output_step;
  sub->output_step_w = w.output_step;
}

}  // namespace jax_convbatch::hopper
