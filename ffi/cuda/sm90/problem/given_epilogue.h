// SPDX-License-Identifier: Apache-2.0
// The epilogue of a call, in the forms that kernels take. Host only.
#pragma once

#include "cuda/sm90/problem/conv.h"
#include "cuda/sm90/problem/epilogue.h"

namespace jax_convbatch::hopper {

// One that does nothing where none is given.
inline Epilogue EpilogueOf(const ConvCall& call) {
  if (call.epilogue != nullptr) return *call.epilogue;
  Epilogue none{};
  none.activation = Activation::kIdentity;
  return none;
}

// run(), of a plain one, as a PlainEpilogue.
template <typename Run>
cudaError_t WithPlainEpilogue(const ConvCall& call, Run run) {
  const Epilogue& given = *call.epilogue;
  auto with = [&](auto epilogue) {
    epilogue.bias = given.bias;
    epilogue.bitmask = given.bitmask;
    epilogue.relu = given.activation == Activation::kRelu;
    return run(epilogue);
  };
  return given.bitmask != nullptr ? with(PlainEpilogue<true>())
                                  : with(PlainEpilogue<false>());
}

}  // namespace jax_convbatch::hopper
