// SPDX-License-Identifier: Apache-2.0
// The kernel of the forward pass, of causal and of padded sequences.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "activation.h"
#include "cuda/common/floats.h"
#include "cuda/sm80/causal_conv1d/tasks.h"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::causal {

// x begins where y does, after the state's rows or zeros.
template <typename T, int kVector, bool kSegments_>
class CausalRows {
 public:
  using Type = T;
  using Problem = causal::Problem;
  using Loaded = Vector<T, kVector>;
  static constexpr int kSize = kVector;
  static constexpr bool kSegments = kSegments_, kActivates = true;

  __device__ CausalRows(const Walk<T, kVector>& walk, const Problem& p)
      : walk_(walk), p_(p), x_(walk.Origin(p.arrays.x)) {}

  // Beyond the end the last row, which nobody uses.
  __device__ Loaded Load(int i) const {
    return *walk_.Row(x_, min(i, walk_.end - 1));
  }
  static __device__ const Loaded& Unpacked(const Loaded& row) { return row; }
  __device__ int Id(int i) const { return walk_.Id(p_, min(i, walk_.end - 1)); }
  template <typename Window>
  __device__ void Fill(Window& window) const {
    window.template Load<kSegments>(walk_, p_);
  }

 private:
  const Walk<T, kVector>& walk_;
  const Problem& p_;
  char* x_;
};

// x has rows from `begin_` on, as many as `count_`; before and behind are
// zeros.
template <typename T, int kVector>
class PaddedRows {
  using V = Vector<T, kVector>;
  static constexpr int kBytes = sizeof(V);
  using Word = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;

 public:
  using Type = T;
  using Problem = PaddedProblem;
  // Whole registers: where a load has a condition, the compiler would take
  // halves apart at once, and wait for each load.
  using Loaded = Vector<Word, kBytes / sizeof(Word)>;
  static constexpr int kSize = kVector;
  static constexpr bool kSegments = false, kActivates = false;

  __device__ PaddedRows(const Walk<T, kVector>& walk, const Problem& p)
      : walk_(walk),
        p_(p),
        x_(walk.Origin(p.arrays.x, p.x_rows, p.shift, p.columns)) {
    const int at = walk.phase + p.shift;  // row 0
    begin_ = CeilDiv(-at, p.dilation);
    // Nobody uses what lies beyond this thread's rows.
    last_ = min(CeilDiv(p.x_rows - at, p.dilation), walk.end) - 1;
    count_ = max(last_ + 1 - begin_, 0);
  }

  __device__ Loaded Load(int i) const {
    Loaded row{};
    if (static_cast<unsigned>(i - begin_) < static_cast<unsigned>(count_)) {
      // The bound says nothing new, but keeps the compiler from an address in
      // registers for each row of a turn.
      row = *reinterpret_cast<const Loaded*>(walk_.Row(x_, min(i, last_)));
    }
    return row;
  }
  static __device__ V Unpacked(const Loaded& row) {
    V values;
    memcpy(&values, &row, sizeof(V));
    return values;
  }
  template <int kTaps>
  __device__ void Fill(Window<T, kTaps, kVector>& window) const {
#pragma unroll
    for (int t = 0; t < kTaps - 1; ++t) {
      const int i = walk_.first + t - (kTaps - 1);
      Widen(Unpacked(Load(i)), window.x[Place<kTaps>(t + 1)]);
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      const int64_t row = int64_t{t} * p_.tap_step * p_.columns;
      const Loaded taps =
          static_cast<const Loaded*>(p_.filter)[row + walk_.column];
      Widen(Unpacked(taps), window.w[t]);
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) window.bias[v] = 0.0f;
  }

 private:
  static __device__ int CeilDiv(int a, int b) {
    return a > 0 ? (a + b - 1) / b : -(-a / b);
  }

  const Walk<T, kVector>& walk_;
  const Problem& p_;
  char* x_;
  int begin_, last_, count_;
};

// Rows that a thread has in flight: some 64 bytes.
template <typename T, int kTaps, int kVector>
constexpr int kLeast = sizeof(T) == 2 && kVector != 1 && kTaps <= 4 ? 8 : 4;

template <int kVector>
__device__ __forceinline__ void ActivateAll(float (&z)[kVector]) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) z[v] = Activate(Activation::kSilu, z[v]);
}

template <typename Rows, int kTaps>
__global__ void __launch_bounds__(kThreads)
    FpropKernel(const typename Rows::Problem p) {
  using T = typename Rows::Type;
  constexpr int kVector = Rows::kSize;
  constexpr bool kSegments = Rows::kSegments;
  constexpr int kRows = Turn<kTaps, kLeast<T, kTaps, kVector>>::kRows;
  const Walk<T, kVector> walk(p);
  if (walk.first >= walk.end) return;
  Window<T, kTaps, kVector> window;
  const Rows rows(walk, p);
  char* const y = walk.Origin(p.arrays.y);
  typename Rows::Loaded next[kRows];
  int next_ids[kRows];
  auto load = [&](int i, int u) {
    next[u] = rows.Load(i + u);
    if constexpr (kSegments) next_ids[u] = rows.Id(i + u);
  };
#pragma unroll
  for (int u = 0; u < kRows; ++u) load(walk.first, u);
  rows.Fill(window);
  for (int i = walk.first; i < walk.end; i += kRows) {
    float z[kRows][kVector];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      Widen(Rows::Unpacked(next[u]), window.x[Place<kTaps>(u)]);
      if constexpr (kSegments) window.ids[Place<kTaps>(u)] = next_ids[u];
      load(i + kRows, u);
      SumTaps<kTaps, kVector, kSegments>(window.w, window.bias, window.x,
                                         window.ids, u, z[u]);
    }
    if constexpr (Rows::kActivates) {
      if (p.silu) {
#pragma unroll
        for (int u = 0; u < kRows; ++u) ActivateAll(z[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (i + u < walk.end) *walk.Row(y, i + u) = Narrow<T>(z[u]);
    }
  }
}

}  // namespace jax_convbatch::causal
