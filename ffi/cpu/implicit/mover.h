// SPDX-License-Identifier: Apache-2.0
// The next panels of a filter, made bit by bit while others are multiplied.
#pragma once

#include <algorithm>
#include <cstdint>

#include "columns.h"
#include "tasks.h"

namespace jax_convbatch {

// Makes panels `width` wide, of pairs of vectors, of some blocks of the matrix
// at `from`, whose rows are `stride` apart.
template <typename A>
class Mover {
 public:
  Mover() = default;
  Mover(const A* from, int64_t stride, const ColumnBlock* block,
        const ColumnBlock* end, int64_t width, int64_t pair, A* to)
      : from_(from),
        stride_(stride),
        block_(block),
        end_(end),
        pairs_(width / pair),
        pair_(pair),
        to_(to) {}

  // What to do while `blocks` blocks of terms are multiplied. Whether there is
  // something for each of them; otherwise it does nothing.
  bool Take(Terms<A>* terms, int blocks) {
    const Mover before = *this;
    for (int i = 0; i < blocks; ++i) {
      const int64_t count = CeilDiv(terms[i].depth, kFetchDepth) * kMoved;
      if (block_ == end_ || count > size()) {
        for (int j = 0; j < i; ++j) terms[j].move = {};
        *this = before;
        return false;
      }
      // To move some twice does no harm.
      at_ = std::min(at_, size() - count);
      terms[i].move = Next();
      Advance(count);
    }
    return true;
  }

  // All that was left over.
  void Finish() {
    for (; block_ != end_; Advance(1)) {
      const Move<A> move = Next();
      std::copy_n(move.from, pair_, move.to);
    }
  }

 private:
  // Rows ahead that are asked for: more than are moved during a block.
  static constexpr int64_t kLater = 4;

  int64_t depth() const { return block_->end - block_->begin; }
  // Pairs of a block.
  int64_t size() const { return depth() * pairs_; }

  Move<A> Next() const {
    const int64_t row = at_ / pairs_, j = at_ % pairs_;
    const int64_t step = depth() * pair_;
    return {from_ + (block_->begin + row) * stride_ + j * pair_,
            to_ + j * step + row * pair_,
            step,
            pairs_ - j,
            pairs_,
            stride_ - (pairs_ - 1) * pair_,
            pair_ - (pairs_ - 1) * step,
            kLater * stride_};
  }

  void Advance(int64_t count) {
    at_ += count;
    if (at_ < size()) return;
    to_ += size() * pair_;
    at_ = 0;
    ++block_;
  }

  const A* from_ = nullptr;
  int64_t stride_ = 0;
  const ColumnBlock *block_ = nullptr, *end_ = nullptr;
  int64_t pairs_ = 0, pair_ = 0;
  A* to_ = nullptr;
  int64_t at_ = 0;  // pairs of the block that are done
};

}  // namespace jax_convbatch
