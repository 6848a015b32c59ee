// What a part of the output is told of its axes. Host only.
#ifndef JAX_CONVBATCH_CUDA_SM90_PROBLEM_CONV_PART_AXES_H_
#define JAX_CONVBATCH_CUDA_SM90_PROBLEM_CONV_PART_AXES_H_

#include <cstdint>

#include "cuda/sm90/problem/conv_parts.h"
#include "cuda/sm90/problem/conv_problem.h"

namespace jax_convbatch::hopper {

// All of a part but its maps and where threads store.
inline void SetAxes(const PartAxes& axes, int64_t images, int channel_blocks,
                    ConvPart* part) {
  const PartAxis &h = axes.h, &w = axes.w;
  part->taps_h = h.taps;
  part->taps_w = w.taps;
  part->rows = static_cast<int>(h.count);
  part->cols = static_cast<int>(w.count);
  part->pixels = static_cast<int>(images * h.count * w.count);
  part->iterations = h.taps.count * w.taps.count * channel_blocks;
  part->input_h = static_cast<int>(h.input);
  part->input_w = static_cast<int>(w.input);
  part->input_step_h = h.input_step;
  part->input_step_w = w.input_step;
  part->output_h = static_cast<int>(h.output);
  part->output_w = static_cast<int>(w.output);
  part->output_step_h = h.output_step;
  part->output_step_w = w.output_step;
}

}  // namespace jax_convbatch::hopper

#endif  // JAX_CONVBATCH_CUDA_SM90_PROBLEM_CONV_PART_AXES_H_
