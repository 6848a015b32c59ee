// SPDX-License-Identifier: Apache-2.0
#include "direct.h"

#include <algorithm>

#include "scratch.h"

namespace jax_convbatch {

template <typename A>
bool DirectCovers(const ConvGeometry& g, Element type, Element out_type) {
  const int64_t group = g.group_C(), bytes = g.w_size() * sizeof(A);
  return g.groups > 1 && group == g.group_K() && group <= 8 &&
         ChosenKernels<A>().vector % group == 0 && type == kNative<A> &&
         out_type == type && bytes <= kPanelBytes &&
         g.C * int64_t{sizeof(A)} <= kSumBytes / 2;
}

template <typename A>
DirectRows<A>::DirectRows(const Reading& reading, int64_t index,
                          const void* image)
    : reading_(reading),
      d_(reading.d[index / (reading.h.size() * reading.w.size())]),
      h_(reading.h[index / reading.w.size() % reading.h.size()]),
      w_(reading.w[index % reading.w.size()]),
      image_(static_cast<const A*>(image)),
      pixels_(d_.taps.size() * h_.taps.size() * w_.taps.size()) {}

template <typename A>
int64_t DirectRows<A>::count() const {
  return reading_.samples * d_.count * h_.count;
}

template bool DirectCovers<float>(const ConvGeometry&, Element, Element);
template bool DirectCovers<double>(const ConvGeometry&, Element, Element);
template class DirectRows<float>;
template class DirectRows<double>;

}  // namespace jax_convbatch
