// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences_call.h"
#include "cuda/sm80/causal_conv1d/dispatch.cuh"
#include "cuda/sm80/causal_conv1d/fprop.cuh"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::direct {
namespace {

template <typename T, int kTaps, int kVector>
cudaError_t Run(Op op, const DepthwiseSequences& sequences, const Call& call,
                Stage stage, cudaStream_t stream) {
  const causal::Tasks tasks = sequences.tasks();
  causal::Arrays arrays{};
  arrays.x = call.lhs;
  arrays.y = call.result;
  // dgrad is the fprop of dy with the taps from the last to the first.
  const bool dgrad = op == Op::kDgrad;
  const auto* const filter = static_cast<const T*>(call.rhs);
  const int64_t last = (sequences.call.taps - 1) * sequences.call.C;
  const causal::PaddedProblem problem{
      causal::ProblemOf(sequences.call, tasks, arrays),
      static_cast<int>(sequences.x_rows), static_cast<int>(sequences.shift),
      dgrad ? filter + last : filter, dgrad ? -1 : 1};
  const auto blocks = static_cast<unsigned>(tasks.blocks(sequences.call.G));
  return LaunchOrPrepare(
      &causal::FpropKernel<causal::PaddedRows<T, kVector>, kTaps>, problem,
      blocks, causal::kThreads, 0, stage, stream);
}

}  // namespace

cudaError_t RunDepthwiseSequences(Op op, const Call& call, Stage stage,
                                  cudaStream_t stream) {
  const auto sequences = SequencesOf(op, call.g, call.type);
  if (!sequences) return cudaErrorInvalidValue;
  return causal::ForDtypeAndTaps(sequences->call, [&](auto tag, auto taps) {
    using T = typename decltype(tag)::type;
    constexpr int kTaps = taps();
    if constexpr (kTaps == 1) {
      return cudaErrorInvalidValue;
    } else {
      switch (sequences->vector) {
        case 4:
          return Run<T, kTaps, 4>(op, *sequences, call, stage, stream);
        case 2:
          return Run<T, kTaps, 2>(op, *sequences, call, stage, stream);
        default:
          return Run<T, kTaps, 1>(op, *sequences, call, stage, stream);
      }
    }
  });
}

}  // namespace jax_convbatch::direct
