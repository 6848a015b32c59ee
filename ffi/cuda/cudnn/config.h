// SPDX-License-Identifier: Apache-2.0
// Configurations of cuDNN's engines, and what its heuristics recommend.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/cudnn/graph.h"

namespace jax_convbatch::cudnn {

// An engine and its knobs by the numbers that cuDNN gives them.
struct Config {
  int64_t engine;
  std::map<int64_t, int64_t> knobs;

  bool Has(cudnnBackendKnobType_t knob) const {
    return knobs.count(static_cast<int64_t>(knob)) != 0;
  }

  // A knob's value, or `otherwise` where it has none.
  int64_t Knob(cudnnBackendKnobType_t knob, int64_t otherwise) const {
    const auto found = knobs.find(static_cast<int64_t>(knob));
    return found == knobs.end() ? otherwise : found->second;
  }

  // As cuDNN writes it: "eng4_k2=1_k14=2".
  std::string Name() const;

  // Throws std::runtime_error where it is no such name.
  static Config Parse(const std::string& name);
};

// A configuration for a problem, not yet built.
struct Recommendation {
  Config config;
  int64_t workspace;
};

// How much is asked for: the best mode's, in 2 ms, or those of all, in 30.
enum class Heuristics { kQuick, kAll };

// The heuristics' configurations for a problem, best first: deterministic ones,
// whose sums are f32, without transforms (Winograd, FFT), and without TF32
// unless `tf32`. Throws std::runtime_error where cuDNN refuses the problem.
std::vector<Recommendation> Recommended(const Problem& problem, bool tf32,
                                        Heuristics heuristics,
                                        cudnnHandle_t handle);

// Puts a configuration at the end of a graph's list; returns its place. Throws
// std::runtime_error where the engine does not run the graph.
int64_t Append(ConvGraph& graph, const Config& config);

}  // namespace jax_convbatch::cudnn
