// SPDX-License-Identifier: Apache-2.0
// y of a causal convolution, of a sequence or of one position after a state.
//
// Tiles are some rows of a block of channels. An element is formed by the same
// operations wherever it lies in its tile.
#include "causal_conv1d.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "act_loops.h"
#include "causal_conv1d_loops.h"
#include "causal_conv1d_rows.h"
#include "ffi_checks.h"
#include "half.h"
#include "handlers.h"
#include "parallel.h"

namespace jax_convbatch {
namespace {

using namespace causal_conv1d;

// A task should be worth handing to another thread.
constexpr int64_t kTaskElements = 1 << 15;

template <typename T>
struct Arrays {
  const T* x;
  const Compute<T>*w, *bias;
  const T* state;
  const int32_t* ids;
  T* y;
};

template <typename T>
void Forward(const CausalConv1d& call, const Arrays<T>& a) {
  using A = Compute<T>;
  if (call.x_size() == 0) return;
  const Blocks blocks(call.C);
  const int64_t tile = std::min(kTileRows * blocks.fold, call.L);
  const int64_t tiles = (call.L + tile - 1) / tile;
  const int64_t rows_size = TapRows<T>::BufferSize(call, tile, blocks.width);
  const int64_t weights_size = BlockWeights<A>::BufferSize(call, blocks);
  const int64_t grain = 1 + kTaskElements / (tile * blocks.width);
  ParallelFor(
      call.samples() * tiles * blocks.count, grain,
      [&](int64_t begin, int64_t end) {
        Scratch<A> scratch({rows_size, weights_size});
        std::vector<const A*> at(call.taps);
        alignas(Scratch<A>::kLine) A z[kBlockChannels];
        TapRows<T> rows(call, tile, scratch.Take());
        BlockWeights<A> weights(call, blocks, a.w, a.bias, scratch.Take());
        for (int64_t i = begin; i < end; ++i) {
          const int64_t block = i % blocks.count, width = blocks.size(block);
          const int64_t first = i / blocks.count % tiles * tile;
          const int64_t last = std::min(first + tile, call.L);
          const int64_t sample = i / blocks.count / tiles;
          weights.Choose(sample / call.n, block);
          rows.Choose(
              SampleAt(call, a.x, a.state, a.ids, sample, blocks.begin(block)),
              width);
          rows.Load(first, last);
          T* y = a.y + sample * call.L * call.C + blocks.begin(block);
          for (int64_t l = first; l < last;) {
            const int64_t run = rows.Find(l, last, blocks.fold, at.data());
            const int64_t count = run * width;
            A* out = z;
            if constexpr (!TapRows<T>::kConverts) out = y + l * call.C;
            SumTaps(weights.bias, weights.w, weights.stride, at.data(),
                    call.taps, out, count);
            if (call.activation != Activation::kIdentity) {
              ActivateTile(call.activation, out, out, count);
            }
            if constexpr (TapRows<T>::kConverts) {
              NarrowRow(z, y + l * call.C, count);
            }
            l += run;
          }
        }
      });
}

// new_state = the rows of the state after its first, and x. The two may be one
// array.
template <typename T>
void Shift(const CausalConv1d& call, const T* state, const T* x, T* new_state) {
  const int64_t kept = (call.state_rows - 1) * call.C;
  if (kept < 0) return;
  ParallelFor(call.samples(), 1 + (1 << 14) / (kept + call.C + 1),
              [&](int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  T* to = new_state + i * (kept + call.C);
                  std::memmove(to, state + i * (kept + call.C) + call.C,
                               kept * sizeof(T));
                  std::copy_n(x + i * call.C, call.C, to + kept);
                }
              });
}

ffi::Error CausalConv1dImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                            ffi::AnyBuffer bias, ffi::AnyBuffer state,
                            ffi::AnyBuffer ids, ffi::Result<ffi::AnyBuffer> y,
                            int64_t dilation, std::string_view activation) {
  CausalConv1d call;
  JCB_RETURN_IF_ERROR(
      DecodeCausalConv1d(x, w, bias, state, ids, dilation, activation, &call));
  JCB_RETURN_IF_ERROR(CheckLikeX("y", *y, call));
  AskForHugePages({*y});
  return ForType(call, [&](auto type) {
    using T = decltype(type);
    Forward<T>(call, {Data<T>(x), Data<Compute<T>>(w), Data<Compute<T>>(bias),
                      Data<T>(state), Data<int32_t>(ids), Data<T>(*y)});
  });
}

ffi::Error CausalConv1dUpdateImpl(ffi::AnyBuffer state, ffi::AnyBuffer x,
                                  ffi::AnyBuffer w, ffi::AnyBuffer bias,
                                  ffi::Result<ffi::AnyBuffer> y,
                                  ffi::Result<ffi::AnyBuffer> new_state,
                                  int64_t dilation,
                                  std::string_view activation) {
  CausalConv1d call;
  JCB_RETURN_IF_ERROR(DecodeCausalConv1dUpdate(
      state, x, w, bias, *y, *new_state, dilation, activation, &call));
  return ForType(call, [&](auto type) {
    using T = decltype(type);
    Forward<T>(call, {Data<T>(x), Data<Compute<T>>(w), Data<Compute<T>>(bias),
                      Data<T>(state), nullptr, Data<T>(*y)});
    Shift<T>(call, Data<T>(state), Data<T>(x), Data<T>(*new_state));
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CausalConv1dCpu, CausalConv1dImpl,
                              BindCausalConv1d(ffi::Ffi::Bind()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(CausalConv1dUpdateCpu, CausalConv1dUpdateImpl,
                              BindCausalConv1dUpdate(ffi::Ffi::Bind()));

}  // namespace jax_convbatch
