// SPDX-License-Identifier: Apache-2.0
// The gradient of a causal convolution. z is formed again, from x; of dz, a
// tile holds what the rows of a chunk want, which is state_rows more than the
// chunk has.
//
// The number of threads decides only who forms which chunk.
#include <algorithm>
#include <vector>

#include "act_loops.h"
#include "causal_conv1d.h"
#include "causal_conv1d_loops.h"
#include "causal_conv1d_rows.h"
#include "ffi_checks.h"
#include "half.h"
#include "handlers.h"
#include "parallel.h"

namespace jax_convbatch {
namespace {

using namespace causal_conv1d;

template <typename T>
struct Arrays {
  const T* x;
  const Compute<T>*w, *bias;
  const T* state;
  const int32_t* ids;
  const T* dy;
  T* dx;
  Compute<T>*dw, *dbias;
  T* dstate;
  Compute<T>* partial;  // [G, chunks, taps + 1, C]
};

// What one thread has for its chunks.
template <typename T>
class ChunkGrad {
 public:
  using A = Compute<T>;
  static constexpr bool kConverts = TapRows<T>::kConverts;

  ChunkGrad(const CausalConv1d& call, const Blocks& blocks,
            const Chunks& chunks, const Arrays<T>& arrays)
      : call_(call),
        blocks_(blocks),
        chunks_(chunks),
        a_(arrays),
        tile_(std::min(kTileRows * blocks.fold, call.L)),
        dz_tiles_{call.taps, call.dilation, std::min(chunks.positions, call.L)},
        scratch_({TapRows<T>::BufferSize(call, tile_, blocks.width),
                  BlockWeights<A>::BufferSize(call, blocks),
                  dz_tiles_.rows() * blocks.width, sums_size(),
                  blocks.lanes()}),
        at_(call.taps),
        rows_(call, tile_, scratch_.Take()),
        weights_(call, blocks, arrays.w, arrays.bias, scratch_.Take()),
        dz_(scratch_.Take()),
        sums_(scratch_.Take()),
        row_(scratch_.Take()) {}

  void Run(int64_t g, int64_t chunk, int64_t block) {
    const int64_t width = blocks_.size(block);
    weights_.Choose(g, block);
    std::fill_n(sums_, sums_size(), A{0});
    const int64_t first = chunk % chunks_.along_positions * chunks_.positions;
    const int64_t last = std::min(first + chunks_.positions, call_.L);
    const int64_t n = chunk / chunks_.along_positions * chunks_.samples;
    for (int64_t i = n; i < std::min(n + chunks_.samples, call_.n); ++i) {
      Choose(g * call_.n + i, block, width);
      if (call_.has_state && first == 0) StateGrad();
      const int64_t S = call_.state_rows;
      RowsGrad(S + first, S + last, dx_ + first * call_.C, /*add=*/true);
    }
    WriteSums((g * chunks_.count() + chunk) * (call_.taps + 1) * call_.C +
                  blocks_.begin(block),
              width);
  }

 private:
  int64_t sums_size() const { return (call_.taps + 1) * blocks_.lanes(); }

  void Choose(int64_t sample, int64_t block, int64_t width) {
    const int64_t channel = blocks_.begin(block);
    width_ = width;
    rows_.Choose(SampleAt(call_, a_.x, a_.state, a_.ids, sample, channel),
                 width);
    const int64_t at = sample * call_.L * call_.C + channel;
    dy_ = a_.dy + at;
    dx_ = a_.dx + at;
    if (!call_.has_state) return;
    dstate_ = a_.dstate + sample * call_.state_rows * call_.C + channel;
  }

  void StateGrad() {
    for (int64_t row = 0; row < call_.state_rows; row += dz_tiles_.tile) {
      RowsGrad(row, std::min(row + dz_tiles_.tile, call_.state_rows),
               dstate_ + row * call_.C, /*add=*/false);
    }
  }

  // The gradient of rows [begin, end) of xs, whose last tap is that of
  // positions [begin - state_rows, end - state_rows). Where `add`, these add
  // to the sums.
  void RowsGrad(int64_t begin, int64_t end, T* out, bool add) {
    const int64_t S = call_.state_rows;
    const int64_t own_end = add ? end - S : 0;
    // In dz_, tap t is where tap taps - 1 - t of TapTiles is: it reads
    // t dilation before the row.
    if (dz_tiles_.overlap()) {
      FormDz(begin - S, end, own_end, 0);
    } else {
      for (int64_t t = 0; t < call_.taps; ++t) {
        const int64_t shift = t * call_.dilation;
        FormDz(begin - shift, end - shift, t == call_.taps - 1 ? own_end : 0,
               dz_tiles_.place(0, call_.taps - 1 - t));
      }
    }
    for (int64_t row = begin; row < end;) {
      const int64_t run = FindRun(
          call_.taps, row, RunLimit(row, end), width_, call_.has_ids,
          at_.data(), [&](int64_t r, int64_t t) { return DzAt(begin, r, t); });
      const int64_t count = run * width_;
      A* sum = row_;
      if constexpr (!kConverts) sum = out;
      SumTaps(kZeros<A>, weights_.w, weights_.stride, at_.data(), call_.taps,
              sum, count);
      if constexpr (kConverts) NarrowRow(row_, out, count);
      row += run;
      out += run * call_.C;
    }
  }

  // Up to where, from a row on, each tap's dz stays inside or outside of y.
  int64_t RunLimit(int64_t row, int64_t end) const {
    int64_t limit = std::min(end - row, blocks_.fold);
    for (int64_t t = 0; limit > 1 && t < call_.taps; ++t) {
      const int64_t l = row - t * call_.dilation;
      if (l < call_.L) limit = std::min(limit, l < 0 ? -l : call_.L - l);
    }
    return limit;
  }

  // The dz that tap t takes to row r, in the tile of the rows from `begin` on.
  const A* DzAt(int64_t begin, int64_t r, int64_t t) const {
    const int64_t l = r - t * call_.dilation;
    const int32_t* ids = rows_.sample().ids;
    if (l < 0 || l >= call_.L ||
        (ids != nullptr && ids[r] != ids[l + call_.state_rows])) {
      return kZeros<A>;
    }
    return dz_ + dz_tiles_.place(r - begin, call_.taps - 1 - t) * width_;
  }

  // dz of those of positions [begin, end) that there are, where dz_ has row
  // `place` for the first of them. Those before own_end add to the sums.
  void FormDz(int64_t begin, int64_t end, int64_t own_end, int64_t place) {
    A* out = dz_ + (place + std::max(-begin, int64_t{0})) * width_;
    begin = std::max(begin, int64_t{0});
    end = std::min(end, call_.L);
    for (int64_t first = begin; first < end;) {
      int64_t last = std::min(first + tile_, end);
      if (first < own_end) last = std::min(last, own_end);
      rows_.Load(first, last);
      for (int64_t l = first; l < last;) {
        const int64_t run = rows_.Find(l, last, blocks_.fold, at_.data());
        const int64_t count = run * width_;
        FormDzRow(l, count, out);
        if (l < own_end) {
          AddProducts(out, at_.data(), call_.taps, sums_, blocks_.lanes(),
                      count);
        }
        out += count;
        l += run;
      }
      first = last;
    }
  }

  void FormDzRow(int64_t l, int64_t count, A* out) {
    const T* dy = dy_ + l * call_.C;
    if (call_.activation == Activation::kIdentity) {
      WidenRow(dy, out, count);
      return;
    }
    SumTaps(weights_.bias, weights_.w, weights_.stride, at_.data(), call_.taps,
            out, count);
    if constexpr (kConverts) {
      WidenRow(dy, row_, count);
      GradTile(call_.activation, out, row_, out, count);
    } else {
      GradTile(call_.activation, out, dy, out, count);
    }
  }

  void WriteSums(int64_t at, int64_t width) {
    for (int64_t t = 0; t <= call_.taps; ++t) {
      A* sum = sums_ + t * blocks_.lanes();
      for (int64_t i = 1; i < blocks_.fold; ++i) {
        AddRows(sum + i * width, 1, width, sum);
      }
      std::copy_n(sum, width, a_.partial + at + t * call_.C);
    }
  }

  const CausalConv1d& call_;
  const Blocks& blocks_;
  const Chunks& chunks_;
  const Arrays<T>& a_;
  const int64_t tile_;
  const TapTiles dz_tiles_;
  Scratch<A> scratch_;
  std::vector<const A*> at_;
  TapRows<T> rows_;
  BlockWeights<A> weights_;
  A *dz_, *sums_, *row_;
  const T* dy_ = nullptr;
  T *dx_ = nullptr, *dstate_ = nullptr;
  int64_t width_ = 0;
};

// dw and dbias from the chunks' sums, which are added in pairs, then pairs of
// pairs.
template <typename T>
void AddChunks(const CausalConv1d& call, int64_t chunks, const Arrays<T>& a) {
  using A = Compute<T>;
  constexpr int64_t kPiece = 1024;
  const int64_t row = (call.taps + 1) * call.C;
  const int64_t pieces = (row + kPiece - 1) / kPiece;
  ParallelFor(
      call.G * pieces, 1 + 16 / chunks, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t g = i / pieces, first = i % pieces * kPiece;
          const int64_t count = std::min(kPiece, row - first);
          A* sums = a.partial + g * chunks * row + first;
          for (int64_t step = 1; step < chunks; step *= 2) {
            for (int64_t c = 0; c + step < chunks; c += 2 * step) {
              AddRows(sums + (c + step) * row, 1, count, sums + c * row);
            }
          }
          const int64_t of_w =
              std::clamp<int64_t>(call.taps * call.C - first, 0, count);
          std::copy_n(sums, of_w, a.dw + g * call.taps * call.C + first);
          std::copy_n(sums + of_w, count - of_w,
                      a.dbias + g * call.C + first + of_w - call.taps * call.C);
        }
      });
}

template <typename T>
void Gradient(const CausalConv1d& call, const Arrays<T>& a) {
  const Blocks blocks(call.C);
  const Chunks chunks(call);
  ParallelFor(call.G * chunks.count() * blocks.count, 1,
              [&](int64_t begin, int64_t end) {
                ChunkGrad<T> grad(call, blocks, chunks, a);
                for (int64_t i = begin; i < end; ++i) {
                  const int64_t chunk = i / blocks.count;
                  grad.Run(chunk / chunks.count(), chunk % chunks.count(),
                           i % blocks.count);
                }
              });
  AddChunks(call, chunks.count(), a);
}

ffi::Error CausalConv1dGradImpl(ffi::AnyBuffer x, ffi::AnyBuffer w,
                                ffi::AnyBuffer bias, ffi::AnyBuffer state,
                                ffi::AnyBuffer ids, ffi::AnyBuffer dy,
                                ffi::Result<ffi::AnyBuffer> dx,
                                ffi::Result<ffi::AnyBuffer> dw,
                                ffi::Result<ffi::AnyBuffer> dbias,
                                ffi::Result<ffi::AnyBuffer> dstate,
                                ffi::Result<ffi::AnyBuffer> workspace,
                                int64_t dilation, std::string_view activation) {
  CausalConv1d call;
  JCB_RETURN_IF_ERROR(
      DecodeCausalConv1d(x, w, bias, state, ids, dilation, activation, &call));
  JCB_RETURN_IF_ERROR(
      CheckCausalConv1dGrad(call, dy, *dx, *dw, *dbias, *dstate));
  if (static_cast<int64_t>((*workspace).size_bytes()) <
      PartialSums(call) * (call.dtype == ffi::F64 ? 8 : 4)) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: causal_conv1d's workspace is too small");
  }
  if (call.x_size() == 0) {
    for (ffi::AnyBuffer result : {*dw, *dbias, *dstate}) {
      std::fill_n(Data<char>(result), result.size_bytes(), 0);
    }
    return ffi::Error::Success();
  }
  AskForHugePages({*dx});
  return ForType(call, [&](auto type) {
    using T = decltype(type);
    using A = Compute<T>;
    Gradient<T>(call,
                {Data<T>(x), Data<A>(w), Data<A>(bias), Data<T>(state),
                 Data<int32_t>(ids), Data<T>(dy), Data<T>(*dx), Data<A>(*dw),
                 Data<A>(*dbias), Data<T>(*dstate), Data<A>(*workspace)});
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CausalConv1dGradCpu, CausalConv1dGradImpl,
                              BindCausalConv1dGrad(ffi::Ffi::Bind()));

}  // namespace jax_convbatch
