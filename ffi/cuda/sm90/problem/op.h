// SPDX-License-Identifier: Apache-2.0
// The three operations. Host only.
#pragma once

namespace jax_convbatch::hopper {

enum class Op { kFprop, kDgrad, kWgrad };

// Of an operation's three functions the one that is asked for.
template <typename Function>
Function* ByOp(Op op, Function* fprop, Function* dgrad, Function* wgrad) {
  return op == Op::kFprop ? fprop : op == Op::kDgrad ? dgrad : wgrad;
}

}  // namespace jax_convbatch::hopper
