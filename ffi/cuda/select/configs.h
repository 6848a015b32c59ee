// SPDX-License-Identifier: Apache-2.0
// The plans that a convolution can be run with, by name. The rule (PlanPath)
// chooses one where nothing was measured; whoever measured names another. Host
// only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/select/paths.h"

namespace jax_convbatch::hopper {

// What tells a plan from the others of its convolution: "128x64" (tile_m x
// tile_n), and in wgrad also the blocks, "256x128/132", how many of them add
// their sums in a cluster, "64x64/120c4": its bits depend on them; and whether
// pairs of blocks copy x or dy for each other, "128x128/128px",
// "192x128/126py"; or in fprop, whether the filter is transposed, "128x128t",
// and whether pixels are copied once for all taps, "128x160h".
std::string ConfigName(Op op, const Plan& plan);

// Every plan that may be chosen, the rule's first. None of them changes bits.
// Empty where the kernels cannot run.
std::vector<Plan> Configs(Op op, const ConvGeometry& g, Type type,
                          int multiprocessors);

// The one of that name, or the rule's for an empty name. Nothing where there is
// none.
std::optional<Plan> FindConfig(Op op, const ConvGeometry& g, Type type,
                               int multiprocessors, std::string_view name);

}  // namespace jax_convbatch::hopper
