// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "narrow.h"
#include "narrow_plan.h"
#include "tasks.h"

namespace jax_convbatch {

template <typename A>
NarrowWgrad<A>::NarrowWgrad(const Wgrad& f)
    : f_(f),
      g_(Lengthwise(f.g)),
      reading_(FpropReading(g_)),
      narrow_(PlanNarrow<A>(reading_, g_.K, true, f.type)) {}

// Tasks are classes' parts; where there is no room for their sums, classes.
template <typename A>
void NarrowWgrad<A>::Run() const {
  const bool in_place = f_.type == kNative<A>;
  const int64_t size = g_.w_size(), parts = f_.parts;
  // Each part's sums in the places of a filter.
  std::vector<A> own;
  A* sums = static_cast<A*>(f_.workspace);
  const bool together = parts == 1 || sums == nullptr;
  if (together) {
    if (!in_place) own.resize(size);
    sums = in_place ? static_cast<A*>(f_.dw) : own.data();
  }
  // Taps that no class has read nothing but zeros.
  std::fill_n(sums, together ? size : parts * size, A(0));
  const int64_t tasks = reading_.count() * (together ? 1 : parts);
  const int64_t work = g_.y_size() * g_.column_size() / tasks;
  ParallelFor(tasks, Grain(work), [&](int64_t begin, int64_t end) {
    const Scratch<A> scratch = Scratch<A>::Get();
    for (int64_t task = begin; task < end; ++task) {
      const int64_t index = task % reading_.count();
      const int64_t first = together ? 0 : task / reading_.count();
      for (int64_t part = first; part < (together ? parts : first + 1);
           ++part) {
        Part(index, part, scratch.left);
        AddTaps(index, scratch.left, together ? sums : sums + part * size,
                together && part > 0);
      }
    }
  });
  const Kernels<A>& kernels = ChosenKernels<A>();
  for (int64_t part = 1; !together && part < parts; ++part) {
    for (int64_t i = 0; i < size; ++i) sums[i] += sums[part * size + i];
  }
  if (!in_place) {
    kernels.convert(f_.type, sums, size, f_.dw);
  } else if (!together) {
    std::copy_n(sums, size, static_cast<A*>(f_.dw));
  }
}

// The sum over a part of a class's rows, [taps, C / groups, K].
template <typename A>
void NarrowWgrad<A>::Part(int64_t index, int64_t part, A* sums) const {
  const Kernels<A>& kernels = ChosenKernels<A>();
  const Scratch<A> scratch = Scratch<A>::Get();
  *scratch.packed = {};
  PackedRows<A> rows(reading_, index, narrow_.layout, kRingBytes / sizeof(A),
                     narrow_.most_places);
  rows.Use(f_.x, f_.type, scratch.panels);
  const int64_t K = g_.K, groups = g_.groups, channels = g_.group_C();
  const int64_t outs = g_.group_K();
  const int terms = static_cast<int>(rows.terms());
  const bool planes = narrow_.layout.planes;
  const int64_t size = rows.taps() * channels * K;
  // With planes, sums are vectors of places until the end.
  A* total = planes ? scratch.sums : sums;
  std::fill_n(total, planes ? size * kernels.vector : size, A(0));
  std::vector<const A*> at(terms * (planes ? groups : 1));
  const int64_t element = ElementSize(f_.type);
  const Pieces pieces(rows.count(), CeilDiv(rows.count(), f_.parts));
  const Pieces few(outs, CeilDiv(outs, CeilDiv(outs, kMostOuts)));
  for (int64_t i = pieces.begin(part); i < pieces.end(part); ++i) {
    const auto block = rows.Get(i, at.data());
    const char* dy =
        static_cast<const char*>(f_.dy) + block.place * K * element;
    if (!planes) {
      const A* from = reinterpret_cast<const A*>(dy);
      int64_t step = rows.period() * K;
      if (f_.type != kNative<A>) {
        for (int64_t p = 0; p < block.count; ++p) {
          kernels.pack_planes(f_.type, dy + p * step * element, 1, 1, K,
                              scratch.part + p * K, 0);
        }
        from = scratch.part, step = K;
      }
      kernels.direct_wgrad(block.count, terms, at.data(), rows.step(), from,
                           step, total, K, narrow_.group);
      continue;
    }
    const int64_t length = RoundUp(block.count, kernels.vector);
    kernels.pack_planes(f_.type, dy, rows.period() * K, K, block.count,
                        scratch.part, length);
    A* to = total;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t j = 0; j < few.count; ++j) {
        const int count = static_cast<int>(few.end(j) - few.begin(j));
        kernels.rows_wgrad(block.count, terms, at.data() + g * terms,
                           scratch.part + (g * outs + few.begin(j)) * length,
                           length, count, to);
        to += terms * count * kernels.vector;
      }
    }
  }
  if (!planes) return;
  // A lane's sums, in the order of the products: group, channels, term.
  A* lanes = scratch.part;
  kernels.lane_sums(total, size, lanes);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t j = 0; j < few.count; ++j) {
      for (int64_t term = 0; term < terms; ++term) {
        for (int64_t k = few.begin(j); k < few.end(j); ++k) {
          sums[term * K + g * outs + k] = *lanes++;
        }
      }
    }
  }
}

// A class's sums, in the places of a filter.
template <typename A>
void NarrowWgrad<A>::AddTaps(int64_t index, const A* sums, A* to,
                             bool add) const {
  const Columns left(reading_, index, 0);
  const int64_t size = g_.group_C() * g_.K;
  for (int64_t tap = 0; tap < left.taps(); ++tap, sums += size) {
    A* at = to + left.FilterTap(tap) * size;
    for (int64_t i = 0; i < size; ++i) at[i] = add ? at[i] + sums[i] : sums[i];
  }
}

template class NarrowWgrad<float>;
template class NarrowWgrad<double>;

}  // namespace jax_convbatch
