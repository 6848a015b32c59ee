// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/sm80/causal_conv1d/causal_conv1d.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences.h"
#include "cuda/sm80/causal_conv1d/depthwise_sequences_call.h"
#include "cuda/sm80/causal_conv1d/dispatch.cuh"
#include "cuda/sm80/causal_conv1d/few_rows.cuh"
#include "cuda/sm80/causal_conv1d/fprop.cuh"
#include "cuda/sm80/causal_conv1d/walk.cuh"

namespace jax_convbatch::direct {
namespace {

// `filter`: of the tap that reads the first row.
template <typename T, int kTaps, int kVector>
cudaError_t RunFewRows(const DepthwiseSequences& sequences,
                       const causal::Arrays& arrays, const T* filter,
                       int tap_step, Stage stage, cudaStream_t stream) {
  const causal::Tasks tasks = sequences.tasks();
  const CausalConv1d& call = sequences.call;
  const int64_t rows = call.n * call.L;
  const int64_t of_block =
      int64_t{tasks.teams} * causal::kFewRows<T, kTaps, kVector>;
  const int64_t groups = (rows + of_block - 1) / of_block;
  const auto narrow = [](int64_t i) { return static_cast<int>(i); };
  const causal::FewRowsProblem problem{
      arrays.x,
      filter,
      arrays.y,
      tasks.lanes,
      narrow(tasks.tiles),
      narrow(tasks.columns),
      narrow(rows),
      narrow(groups * tasks.teams),
      narrow(call.L),
      narrow(sequences.x_rows),
      narrow(call.state_rows - sequences.shift),
      narrow(call.dilation),
      tap_step};
  return LaunchOrPrepare(&causal::FewRowsKernel<T, kTaps, kVector>, problem,
                         static_cast<unsigned>(groups * tasks.tiles),
                         causal::kThreads, 0, stage, stream);
}

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
  const T* const first_tap = dgrad ? filter + last : filter;
  const int tap_step = dgrad ? -1 : 1;
  if (sequences.few_rows) {
    return RunFewRows<T, kTaps, kVector>(sequences, arrays, first_tap, tap_step,
                                         stage, stream);
  }
  const causal::PaddedProblem problem{
      causal::ProblemOf(sequences.call, tasks, arrays),
      static_cast<int>(sequences.x_rows), static_cast<int>(sequences.shift),
      first_tap, tap_step};
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
