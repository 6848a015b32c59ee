#include "cuda/hopper/paths.h"

#include "cuda/hopper/conv_parts.h"
#include "cuda/hopper/gather_plan.h"
#include "cuda/hopper/strip_plan.h"

namespace jax_convbatch::hopper {
namespace {

// Patches are folded where their pixels are read; dgrad writes them.
ConvGeometry Fold(Op op, const ConvGeometry& g, Type type) {
  return op == Op::kDgrad ? g : FoldPatches(g, type);
}

std::optional<Plan> PlanCopies(Op op, const ConvGeometry& g, Type type,
                               int multiprocessors) {
  switch (op) {
    case Op::kFprop:
      return PlanFprop(g, type, multiprocessors);
    case Op::kDgrad:
      return PlanDgrad(g, type, multiprocessors);
    default:
      return PlanWgrad(g, type, multiprocessors);
  }
}

// For strips or for gathering; dgrad has no strips.
std::optional<Plan> PlanFew(Op op, const ConvGeometry& g, int multiprocessors) {
  switch (op) {
    case Op::kFprop:
      if (const auto strips = PlanStripFprop(g, multiprocessors)) return strips;
      return PlanGatherFprop(g, multiprocessors);
    case Op::kDgrad:
      return PlanGatherDgrad(g, multiprocessors);
    default:
      if (const auto strips = PlanStripWgrad(g, multiprocessors)) return strips;
      return PlanGatherWgrad(g, multiprocessors);
  }
}

}  // namespace

std::optional<Plan> PlanPath(Op op, const ConvGeometry& geometry, Type type,
                             int multiprocessors) {
  const ConvGeometry g = Fold(op, geometry, type);
  if (const auto copies = PlanCopies(op, g, type, multiprocessors)) {
    return copies;
  }
  if (type == Type::kTf32 || !IsGatherable(g)) return std::nullopt;
  return PlanFew(op, g, multiprocessors);
}

bool HasEpilogue(const Plan& plan, const ConvGeometry& g) {
  if (plan.path != Path::kStrips) return plan.path == Path::kCopies;
  // As the stems of networks are.
  return g.K % 8 == 0 && !StripShape(g).odd;
}

cudaError_t RunPath(Op op, const ConvCall& given, Stage stage,
                    cudaStream_t stream) {
  const ConvGeometry g = Fold(op, given.g, given.type);
  const ConvCall call = {
      g,         given.type,   given.plan,      given.lhs,
      given.rhs, given.result, given.workspace, given.epilogue};
  const bool strips = call.plan.path == Path::kStrips;
  const bool copies = call.plan.path == Path::kCopies;
  switch (op) {
    case Op::kFprop:
      if (call.epilogue != nullptr && !HasEpilogue(call.plan, g)) {
        return cudaErrorInvalidValue;
      }
      return copies   ? Fprop(call, stage, stream)
             : strips ? StripFprop(call, stage, stream)
                      : GatherFprop(call, stage, stream);
    case Op::kDgrad:
      return copies ? Dgrad(call, stage, stream)
                    : GatherDgrad(call, stage, stream);
    default:
      return copies   ? Wgrad(call, stage, stream)
             : strips ? StripWgrad(call, stage, stream)
                      : GatherWgrad(call, stage, stream);
  }
}

}  // namespace jax_convbatch::hopper
