#include "cuda/direct/direct.h"

#include <cstdint>

#include "cuda/direct/depthwise.h"
#include "cuda/direct/grouped.h"

namespace jax_convbatch::direct {
namespace {

// 2-D, without empty sizes, and small enough for 32-bit offsets in a sample.
bool IsPlain2d(const ConvGeometry& g) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  const double sample = 1.0 * g.H * g.W * g.C, result = 1.0 * g.P * g.Q * g.K;
  return g.D == 1 && g.T == 1 && g.O == 1 && g.pad.d == 0 && g.N > 0 &&
         g.C > 0 && g.K > 0 && sample < kLimit && result < kLimit &&
         1.0 * g.N * g.H * g.W < kLimit && 1.0 * g.N * g.P * g.Q < kLimit;
}

bool IsDepthwise(const ConvGeometry& g) {
  return g.group_C() == 1 && g.group_K() == 1;
}

}  // namespace

std::optional<Plan> MakePlan(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors) {
  if (!IsPlain2d(g)) return std::nullopt;
  if (type != Type::kF32 && !IsDepthwise(g)) {
    return PlanGrouped(op, g, multiprocessors);
  }
  if (IsDepthwise(g)) return PlanDepthwise(op, g, type, multiprocessors);
  return std::nullopt;
}

cudaError_t Run(Op op, const Call& call, Stage stage, cudaStream_t stream) {
  if (call.type != Type::kF32 && !IsDepthwise(call.g)) {
    return RunGrouped(op, call, stage, stream);
  }
  return RunDepthwise(op, call, stage, stream);
}

}  // namespace jax_convbatch::direct
