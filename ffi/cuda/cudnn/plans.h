// SPDX-License-Identifier: Apache-2.0
// Which of cuDNN's engines runs a graph, without timing, and the plans that
// were built for the life of the process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cudnn/graph.h"

namespace jax_convbatch::cudnn {

// The batch that fprop and dgrad are chosen for. Whatever theirs is, they have
// the bits of that choice. Of large images it is small, as people have it.
inline int64_t CanonicalBatch(const ConvGeometry& g) {
  constexpr int64_t kPixels = 1 << 16, kMost = 32;
  const int64_t pixels = g.output_pixels() > 0 ? g.output_pixels() : 1;
  const int64_t batch = (kPixels + pixels - 1) / pixels;
  return batch < kMost ? batch : kMost;
}

// One way to run a problem.
struct Candidate {
  // The engine and its knobs, which name it in another process, too.
  std::string config;
  int64_t workspace;
  // Whether cuDNN compiles its kernel when the plan is built.
  bool compiled_at_run_time;
  // Whether a sample's bits may depend on the batch.
  bool depends_on_batch;
};

// The first `most` configurations for the problem on the current device, in the
// order of cuDNN's heuristics: deterministic ones, whose sums are f32, without
// transforms (Winograd, FFT), and without TF32 unless `tf32`. They are built.
// Of fprop and dgrad those with the bits of one choice for all batches, if
// there is one. Throws std::runtime_error, which says why, where there is none.
std::vector<Candidate> Candidates(const Problem& problem, bool tf32,
                                  int64_t workspace_limit, int most);

// A configuration that was built for a device.
struct BuiltPlan {
  GraphPtr graph;
  int64_t index;  // of the plan in the graph's list
  int64_t workspace;
  bool compiled_at_run_time;
};

// The plan of a configuration on the current device, built if it is not there
// yet. Throws std::runtime_error where the library cannot build it.
std::shared_ptr<const BuiltPlan> FindPlan(const Problem& problem,
                                          const std::string& config);

}  // namespace jax_convbatch::cudnn
