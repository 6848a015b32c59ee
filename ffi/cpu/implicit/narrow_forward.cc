// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "narrow.h"
#include "narrow_plan.h"
#include "tasks.h"

namespace jax_convbatch {
namespace {

// Output channels of a group that one call forms: nearly equal numbers.
Pieces PlacesPieces(int64_t outs) {
  return Pieces(outs, CeilDiv(outs, CeilDiv(outs, kMostOuts)));
}

}  // namespace

template <typename A>
NarrowForward<A>::NarrowForward(const Forward& f)
    : f_(f),
      g_(Lengthwise(f.g)),
      reading_(f.dgrad ? DgradReading(g_) : FpropReading(g_)),
      outs_(f.dgrad ? g_.C : g_.K),
      narrow_(PlanNarrow<A>(reading_, outs_, false, f.type)) {}

template <typename A>
void NarrowForward<A>::Run() const {
  std::vector<A> wide;
  const A* filter = static_cast<const A*>(f_.filter);
  if (f_.type != kNative<A>) {
    wide.resize(g_.w_size() + ChosenKernels<A>().vector);
    ChosenKernels<A>().pack_planes(f_.type, f_.filter, 1, 1, g_.w_size(),
                                   wide.data(), 0);
    filter = wide.data();
  }
  for (int64_t i = 0; i < reading_.count(); ++i) {
    RunClass(i, PackFilter(i, filter).data());
  }
}

// What the kernels multiply a class's terms with, in the order they read it.
template <typename A>
std::vector<A> NarrowForward<A>::PackFilter(int64_t index,
                                            const A* filter) const {
  const Columns left(reading_, index, 0);
  const int64_t in = reading_.group_channels, groups = g_.groups;
  const int64_t outs = outs_ / groups, taps = left.taps();
  // Of tap and input channel `term`, output channel k of group g.
  const auto at = [&](int64_t term, int64_t g, int64_t k) {
    const int64_t tap = left.FilterTap(term / in), c = term % in;
    return f_.dgrad ? filter[(tap * outs + k) * g_.K + g * in + c]
                    : filter[(tap * in + c) * g_.K + g * outs + k];
  };
  std::vector<A> packed;
  packed.reserve(taps * in * (outs_ + 2 * ChosenKernels<A>().vector));
  if (narrow_.lanes == NarrowLanes::kGroups) {
    for (int64_t term = 0; term < taps * in; ++term) {
      for (int64_t k = 0; k < outs_; ++k) {
        packed.push_back(at(term, k / outs, k % outs));
      }
    }
    return packed;
  }
  if (narrow_.lanes == NarrowLanes::kPlaces) {
    const Pieces pieces = PlacesPieces(outs);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < pieces.count; ++i) {
        for (int64_t term = 0; term < taps * in; ++term) {
          for (int64_t k = pieces.begin(i); k < pieces.end(i); ++k) {
            packed.push_back(at(term, g, k));
          }
        }
      }
    }
    return packed;
  }
  // Panels.
  const int64_t vector = ChosenKernels<A>().vector;
  for (int64_t j = 0; j < outs; j += 2 * vector) {
    const int64_t width = outs - j > vector ? 2 * vector : vector;
    for (int64_t term = 0; term < taps * in; ++term) {
      for (int64_t k = j; k < j + width; ++k) {
        packed.push_back(k < outs ? at(term, 0, k) : A(0));
      }
    }
  }
  return packed;
}

template <typename A>
void NarrowForward<A>::RunClass(int64_t index, const A* filter) const {
  const Kernels<A>& kernels = ChosenKernels<A>();
  const auto packed = [&] {
    return PackedRows<A>(reading_, index, narrow_.layout,
                         kRingBytes / sizeof(A), narrow_.most_places);
  };
  const PackedRows<A> shape = packed();
  const int64_t all = shape.count();
  const int64_t work = shape.block() * outs_ *
                       std::max<int64_t>(shape.taps(), 1) *
                       reading_.group_channels;
  // A thread takes rows that lie together, which share most of their input.
  const int64_t grain = std::max(Grain(work / 4), all / (8 * ThreadCount()));
  const bool in_place = f_.out_type == kNative<A>;
  const int64_t groups = g_.groups, outs = outs_ / groups;
  ParallelFor(all, grain, [&](int64_t begin, int64_t end) {
    const Scratch<A> scratch = Scratch<A>::Get();
    *scratch.packed = {};
    PackedRows<A> rows = packed();
    rows.Use(f_.image, f_.type, scratch.panels);
    const int terms = static_cast<int>(rows.terms());
    const bool planes = narrow_.layout.planes;
    std::vector<const A*> at(terms * (planes ? groups : 1));
    for (int64_t i = begin; i < end; ++i) {
      const auto part = rows.Get(i, at.data());
      const int64_t period = in_place ? rows.period() : 1;
      A* z = in_place ? static_cast<A*>(f_.out) + part.place * outs_
                      : scratch.part;
      if (narrow_.lanes == NarrowLanes::kGroups) {
        kernels.direct_forward(part.count, terms, at.data(), rows.step(),
                               filter, outs_, narrow_.group, z, period * outs_);
      } else if (narrow_.lanes == NarrowLanes::kOutputs) {
        kernels.rows_outer(part.count, terms, at.data(), filter, outs_, z,
                           period * outs_);
      } else {
        const int64_t length = RoundUp(part.count, kernels.vector);
        const Pieces pieces = PlacesPieces(outs);
        const A* factors = filter;
        A* sums = scratch.sums;
        for (int64_t g = 0; g < groups; ++g) {
          for (int64_t j = 0; j < pieces.count; ++j) {
            const int few = static_cast<int>(pieces.end(j) - pieces.begin(j));
            kernels.rows_forward(part.count, terms, at.data() + g * terms,
                                 factors, few, sums, length);
            factors += terms * few;
            sums += few * length;
          }
        }
        kernels.interleave(scratch.sums, length, static_cast<int>(outs_),
                           part.count, z, period * outs_);
      }
      Store(part.place, rows.period(), part.count, z);
    }
  });
}

// Makes complete sums of `count` places into the result, where they are not
// that already.
template <typename A>
void NarrowForward<A>::Store(int64_t place, int64_t period, int64_t count,
                             A* z) const {
  const bool in_place = f_.out_type == kNative<A>;
  // Places that lie together, in `z` and in the result.
  const int64_t together = period == 1 ? count : 1;
  const int64_t element = ElementSize(f_.out_type);
  if (in_place && !f_.epilogue) return;
  for (int64_t i = 0; i < count; i += together) {
    A* sums = z + (in_place ? i * period : i) * outs_;
    const int64_t at = place + i * period;
    if (f_.epilogue) f_.epilogue->ApplyAll(at, together, sums);
    if (in_place) continue;
    ChosenKernels<A>().convert(
        f_.out_type, sums, together * outs_,
        static_cast<char*>(f_.out) + at * outs_ * element);
  }
}

template class NarrowForward<float>;
template class NarrowForward<double>;

}  // namespace jax_convbatch
