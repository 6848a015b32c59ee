// SPDX-License-Identifier: Apache-2.0
#include "narrow_plan.h"

#include <utility>

namespace jax_convbatch {
namespace {

// Channels in that are multiplied by all channels out, and channels of a group
// in or out.
constexpr int64_t kFewInputs = 4, kFewOfGroup = 12;
// Terms of a sum, and bytes of a filter or its sums.
constexpr int64_t kMostTerms = 4096, kFilterBytes = 1 << 18;
// Places of a block.
constexpr int64_t kMostPlaces = 1024;

// Whether lanes are better places than channels, whatever the groups.
bool FewEitherWay(int64_t in, int64_t outs) { return in <= 8 && outs <= 8; }

// The same in fprop and dgrad without groups. Where `dots`, dots.inc covers it,
// which does well from 16 channels on.
bool PlacesAreBetter(int64_t in, int64_t outs, int64_t places, bool dots) {
  const int64_t most = dots ? 16 : outs <= kMostDots ? 128 : 32;
  return places >= 12 && outs <= 16 && in <= most;
}

// In wgrad, which loads and stores all sums once in every row: rows should be
// the longer, the less the sums fit the L1.
bool PlacesAreBetterInWgrad(int64_t in, int64_t outs, int64_t places,
                            int64_t bytes) {
  const bool few = outs <= 16 ? in <= 16 || outs <= 8 : in <= 4;
  return few && in <= 512 && outs <= 64 &&
         places >= (bytes <= 1 << 16 ? 16 : 48);
}

}  // namespace

ConvGeometry Lengthwise(ConvGeometry g) {
  for (int axis = 0; axis < 2; ++axis) {
    if (g.W != 1 || g.S != 1 || g.Q != 1 || g.pad.w != 0) return g;
    g.W = std::exchange(g.H, std::exchange(g.D, 1));
    g.S = std::exchange(g.R, std::exchange(g.T, 1));
    g.Q = std::exchange(g.P, std::exchange(g.O, 1));
    for (Axes* axes : {&g.stride, &g.input_dilation, &g.filter_dilation}) {
      axes->w = std::exchange(axes->h, std::exchange(axes->d, 1));
    }
    g.pad.w = std::exchange(g.pad.h, std::exchange(g.pad.d, 0));
  }
  return g;
}

template <typename A>
Narrow PlanNarrow(const Reading& reading, int64_t outs, bool wgrad,
                  Element type) {
  const int64_t in = reading.channels, of_group = reading.group_channels;
  if (of_group == 0 || outs == 0) return {};
  const int64_t groups = in / of_group, outs_of_group = outs / groups;
  const int64_t vector = ChosenKernels<A>().vector;
  Narrow narrow;
  narrow.most_places = kMostPlaces;
  int64_t taps = 0, places = 0;
  for (int64_t i = 0; i < reading.count(); ++i) {
    taps = std::max(taps, Columns(reading, i, 0).taps());
    places = std::max(places, reading.w[i % reading.w.size()].count);
  }
  const int64_t sums = taps * of_group * outs * vector * int64_t{sizeof(A)};
  const bool dots = type == kNative<A> && outs <= kMostDots && in % vector == 0;
  const bool better = wgrad ? PlacesAreBetterInWgrad(in, outs, places, sums)
                            : PlacesAreBetter(in, outs, places, dots);
  if (FewEitherWay(in, outs) || (groups == 1 && better)) {
    narrow.lanes = NarrowLanes::kPlaces;
    narrow.layout.planes = true;
  } else if (groups == 1 && in <= kFewInputs && !wgrad) {
    narrow.lanes = NarrowLanes::kOutputs;
    narrow.layout.planes = true;
  } else if (groups > 1 && of_group <= kFewOfGroup &&
             outs_of_group <= kFewOfGroup) {
    const bool spreads = of_group != outs_of_group || vector % of_group != 0;
    // direct.h reads the image where it lies.
    if (!spreads && type == kNative<A>) return {};
    narrow.lanes = NarrowLanes::kGroups;
    narrow.layout.planes = false;
    if (spreads) {
      narrow.layout.copies = of_group;
      for (int64_t c = 0; c < of_group; ++c) {
        for (int64_t k = 0; k < outs; ++k) {
          narrow.layout.lanes.push_back(
              static_cast<int32_t>(k / outs_of_group * of_group + c));
        }
      }
    } else {
      narrow.group = static_cast<int>(of_group);
    }
  } else {
    return {};
  }
  if (narrow.lanes != NarrowLanes::kPlaces) {
    narrow.most_places =
        std::min(kMostPlaces, kSumBytes / int64_t{sizeof(A)} / outs);
    if (narrow.most_places == 0) return {};
  }
  const int64_t room = kRingBytes / sizeof(A);
  for (int64_t i = 0; i < reading.count(); ++i) {
    const PackedRows<A> rows(reading, i, narrow.layout, room,
                             narrow.most_places);
    const int64_t terms = rows.taps() * of_group;
    const int64_t lanes = wgrad && narrow.layout.planes ? vector : 1;
    if (rows.block() == 0 || terms > kMostTerms ||
        terms * outs * lanes * int64_t{sizeof(A)} > kFilterBytes) {
      return {};
    }
  }
  return narrow;
}

template Narrow PlanNarrow<float>(const Reading&, int64_t, bool, Element);
template Narrow PlanNarrow<double>(const Reading&, int64_t, bool, Element);

}  // namespace jax_convbatch
