// SPDX-License-Identifier: Apache-2.0
// The families of kernels that plans can do without, and which of them are left
// out: none, but while `python -m benchmarks kernels` measures what one is
// worth. Host only.
#pragma once

#include <cstdint>
#include <string_view>

namespace jax_convbatch {

// Named as in benchmarks/kernels.py, which has the files of each.
enum class Family {
  kConvTransposed,
  kDepthwiseCopies,
  kDepthwisePlanes,
  kDepthwiseSequences,
  kDepthwiseToeplitz,
  kDirectGroups,
  kFewChannels,
  kFewChannelsTf32,
  kGroupTf32,
  kHalo,
  kPadding,
  kProductWgrad,
  kRowBand,
  kRowStreaming,
  kScalars,
  kSingleWave,
  kSkinny,
  kSmall,
  kStemTf32,
  kWgradHalo,
  kWgradShort,
};

// False where there is no family of that name.
bool LeaveOut(std::string_view name);
void LeaveOutNone();

bool IsLeftOut(Family family);

// Of all: what was planned with others left out is another plan.
uint64_t LeftOut();

// What `make` returns, an optional, but of a family that is left out.
template <typename Make>
auto Unless(Family family, Make&& make) -> decltype(make()) {
  return IsLeftOut(family) ? decltype(make())() : make();
}

}  // namespace jax_convbatch
