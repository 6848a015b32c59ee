// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/left_out.h"

#include <atomic>
#include <iterator>

namespace jax_convbatch {
namespace {

// In the order of Family.
constexpr std::string_view kNames[] = {"conv_transposed",
                                       "depthwise_copies",
                                       "depthwise_planes",
                                       "depthwise_sequences",
                                       "depthwise_toeplitz",
                                       "direct_groups",
                                       "few_channels",
                                       "few_channels_tf32",
                                       "group_tf32",
                                       "halo",
                                       "padding",
                                       "product_wgrad",
                                       "row_band",
                                       "row_streaming",
                                       "scalars",
                                       "single_wave",
                                       "skinny",
                                       "small",
                                       "stem_tf32",
                                       "wgrad_halo",
                                       "wgrad_short"};
static_assert(std::size(kNames) == static_cast<int>(Family::kWgradShort) + 1);

std::atomic<uint64_t> left_out{0};

}  // namespace

bool LeaveOut(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] != name) continue;
    left_out |= uint64_t{1} << i;
    return true;
  }
  return false;
}

void LeaveOutNone() { left_out = 0; }

bool IsLeftOut(Family family) {
  return (left_out >> static_cast<int>(family) & 1) != 0;
}

uint64_t LeftOut() { return left_out; }

}  // namespace jax_convbatch
