// SPDX-License-Identifier: Apache-2.0
#include "cuda/handlers/implicit_gemm_plan.h"

#include <cstdint>
#include <iterator>

#include "conv_geometry.h"
#include "cuda/common/plan_arguments.h"
#include "cuda/cublas/product_wgrad.h"
#include "cuda/deform/pointwise_gemms.h"
#include "cuda/select/configs.h"
#include "cuda/select/paths.h"
#include "cuda/select/tile_time.h"
#include "cuda/sm80/direct/direct.h"
#include "cuda/sm80/simt/simt.h"
#include "cuda/sm90/kernels/norm_act/norm_act.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "ffi_checks.h"

namespace nb = nanobind;

namespace jax_convbatch {
namespace {

hopper::Type TypeOf(const std::string& dtype) {
  if (dtype == "bfloat16") return hopper::Type::kBf16;
  if (dtype == "float16") return hopper::Type::kF16;
  if (dtype == "float32") return hopper::Type::kTf32;
  const std::string message =
      "dtype must be 'bfloat16', 'float16' or 'float32', and is '" + dtype +
      "'";
  throw nb::value_error(message.c_str());
}

const char* PathName(hopper::Op op, const ConvGeometry& g, hopper::Type type,
                     hopper::Path path) {
  constexpr const char* kPaths[] = {"tiles", "padded tiles", "strips", "sweeps",
                                    "small tiles"};
  static_assert(std::size(kPaths) ==
                static_cast<int>(hopper::Path::kSmall) + 1);
  // Of ordinary loads; RunPath tells its kernels apart in the same way.
  if (path == hopper::Path::kSmall && hopper::Fold(op, g, type).taps() == 1) {
    return "narrow products";
  }
  return kPaths[static_cast<int>(path)];
}

nb::dict FieldsOf(hopper::Op op, const ConvGeometry& g, hopper::Type type,
                  const hopper::Plan& plan) {
  const std::string name = hopper::ConfigName(op, plan);
  nb::dict fields;
  fields["config"] = name.c_str();
  const bool halo = plan.kernel == hopper::TileKernel::kHalo &&
                    plan.path == hopper::Path::kCopies;
  fields["path"] = halo ? "halo tiles" : PathName(op, g, type, plan.path);
  fields["preferred"] = plan.preferred;
  const bool fprop = op == hopper::Op::kFprop;
  fields["epilogue"] = fprop && hopper::HasEpilogue(plan, g, type);
  fields["signs"] = fprop && hopper::HasReluBitmask(plan, g, type);
  fields["workspace"] = Workspace::Aligned(plan.workspace);
  fields["blocks"] = plan.blocks;
  return fields;
}

// Of the wgrad that cuBLAS does.
nb::dict ProductPlan(int64_t workspace, int multiprocessors) {
  nb::dict fields;
  fields["config"] = kProductConfig;
  fields["path"] = "product";
  fields["preferred"] = true;
  fields["epilogue"] = false;
  fields["signs"] = false;
  fields["workspace"] = Workspace::Aligned(workspace);
  fields["blocks"] = multiprocessors;
  return fields;
}

// Of convolutions of several groups, of thin sequences, and of few channels.
nb::list DirectPlans(direct::Op op, const ConvGeometry& g, hopper::Type type,
                     int multiprocessors, bool hopper, bool exact) {
  const auto direct_type = type == hopper::Type::kBf16  ? direct::Type::kBf16
                           : type == hopper::Type::kF16 ? direct::Type::kF16
                           : exact                      ? direct::Type::kF32
                                                        : direct::Type::kTf32;
  const auto plan =
      direct::MakePlan(op, g, direct_type, multiprocessors, hopper);
  nb::list plans;
  if (!plan) return plans;
  const std::string name = direct::PlanName(op, *plan);
  nb::dict fields;
  fields["config"] = name.c_str();
  fields["path"] = plan->copies      ? "copied tiles"
                   : plan->planes    ? "planes"
                   : plan->toeplitz  ? "Toeplitz tiles"
                   : plan->sequences ? "sequence tiles"
                   : plan->scalars   ? "scalar tiles"
                                     : "direct tiles";
  fields["high"] = plan->scalars;
  fields["preferred"] = plan->preferred;
  fields["epilogue"] = false;
  fields["signs"] = false;
  fields["workspace"] = Workspace::Aligned(plan->workspace);
  fields["blocks"] = plan->blocks();
  plans.append(fields);
  return plans;
}

// Of f32 as it is.
nb::list SimtPlans(simt::Op op, const ConvGeometry& g, int multiprocessors,
                   bool hopper) {
  nb::list plans;
  for (const simt::Plan& plan : simt::Plans(op, g, multiprocessors, hopper)) {
    const std::string name = simt::PlanName(plan);
    nb::dict fields;
    fields["config"] = name.c_str();
    fields["path"] =
        plan.bf16x6 ? "true f32 by six products, tiles" : "true f32 tiles";
    fields["high"] = plan.bf16x6;
    fields["preferred"] = plan.preferred;
    fields["epilogue"] = false;
    fields["signs"] = false;
    fields["workspace"] = Workspace::Aligned(plan.workspace);
    fields["blocks"] = plan.blocks;
    plans.append(fields);
  }
  return plans;
}

void CheckPositive(const std::string& name, int64_t value) {
  if (value > 0) return;
  const std::string message =
      name + " must be positive, and is " + std::to_string(value);
  throw nb::value_error(message.c_str());
}

}  // namespace

nb::list ImplicitGemmPlans(nb::str op, nb::dict geometry, nb::str dtype,
                           int multiprocessors, bool hopper, bool exact) {
  CheckPositive("multiprocessors", multiprocessors);
  const ConvGeometry g = GeometryOf(geometry);
  const hopper::Type type = TypeOf(dtype.c_str());
  const bool of_groups = hopper && !(exact && type == hopper::Type::kTf32) &&
                         hopper::TakesGroups(OpOf<hopper::Op>(op.c_str()), g,
                                             type, multiprocessors);
  if (g.groups > 1 && !of_groups) {
    return DirectPlans(OpOf<direct::Op>(op.c_str()), g, type, multiprocessors,
                       hopper, exact);
  }
  nb::list plans;
  if (hopper && g.groups == 1) {
    plans = DirectPlans(OpOf<direct::Op>(op.c_str()), g, type, multiprocessors,
                        hopper, exact);
    if (plans.size() > 0) return plans;
  }
  if (exact && type == hopper::Type::kTf32) {
    return SimtPlans(OpOf<simt::Op>(op.c_str()), g, multiprocessors, hopper);
  }
  const auto operation = OpOf<hopper::Op>(op.c_str());
  if (operation == hopper::Op::kWgrad) {
    if (const auto product = PlanProductWgrad(g, type, multiprocessors)) {
      plans.append(ProductPlan(product->workspace, multiprocessors));
      return plans;
    }
  }
  for (const hopper::Plan& plan :
       hopper::Configs(operation, g, type, multiprocessors)) {
    plans.append(FieldsOf(operation, g, type, plan));
  }
  return plans;
}

nb::list ImplicitGemmTiles(nb::str op, nb::dict geometry, nb::str dtype,
                           int multiprocessors) {
  CheckPositive("multiprocessors", multiprocessors);
  const auto operation = OpOf<hopper::Op>(op.c_str());
  const hopper::Type type = TypeOf(dtype.c_str());
  const ConvGeometry given = GeometryOf(geometry);
  nb::list tiles;
  if (operation == hopper::Op::kWgrad || given.groups > 1) return tiles;
  const auto planned =
      hopper::PlanPath(operation, given, type, multiprocessors);
  if (!planned || planned->path != hopper::Path::kCopies) return tiles;
  const hopper::TiledConv conv(operation, hopper::Fold(operation, given, type),
                               type);
  if (!conv.sums_whole()) return tiles;
  for (const auto& timed : hopper::TimedTiles(conv, multiprocessors)) {
    const auto& [tile, work, us] = timed;
    const std::string name =
        hopper::ConfigName(operation, hopper::PlanOf(timed, multiprocessors));
    nb::dict fields;
    fields["config"] = name.c_str();
    fields["m"] = tile.m;
    fields["n"] = tile.n;
    fields["kernel"] = static_cast<int>(tile.kernel);
    fields["products"] = work.products;
    fields["boxes"] = work.boxes;
    fields["tiles"] = work.tiles;
    fields["stages"] = work.stages;
    fields["longest"] = work.longest;
    fields["bytes"] = work.bytes;
    fields["transposed"] = work.workspace;
    fields["later"] = work.later;
    fields["us"] = us;
    tiles.append(fields);
  }
  return tiles;
}

std::string ImplicitGemmLayerConfig(nb::dict geometry, nb::str dtype,
                                    nb::str config, bool plain, bool bitmask,
                                    int multiprocessors) {
  CheckPositive("multiprocessors", multiprocessors);
  const ConvGeometry g = GeometryOf(geometry);
  const hopper::Type type = TypeOf(dtype.c_str());
  constexpr auto kFprop = hopper::Op::kFprop;
  const auto plan =
      hopper::FindConfig(kFprop, g, type, multiprocessors, config.c_str());
  if (!plan || plan->path != hopper::Path::kCopies) return config.c_str();
  // Which operands there are is all that counts.
  uint8_t operand = 0;
  hopper::Epilogue epilogue{};
  epilogue.activation = Activation::kIdentity;
  if (!plain) epilogue.scale = &operand;
  if (bitmask) epilogue.bitmask = &operand;
  return hopper::ConfigName(
      kFprop, hopper::WithEpilogue(hopper::Fold(kFprop, g, type), type, *plan,
                                   epilogue));
}

nb::object ImplicitGemmNormActPlan(nb::str op, nb::dict geometry, nb::str dtype,
                                   nb::str activation, int multiprocessors) {
  CheckPositive("multiprocessors", multiprocessors);
  const ConvGeometry g = GeometryOf(geometry);
  const hopper::Type type = TypeOf(dtype.c_str());
  const auto parsed = ParseActivation(activation.c_str());
  if (!parsed) throw nb::value_error("unknown activation");
  const bool fprop = OpOf<Operation>(op.c_str()) == Operation::kFprop;
  const auto plan =
      fprop ? hopper::PlanNormAct(g, type, multiprocessors)
            : hopper::PlanNormActGradient(g, type, *parsed, multiprocessors);
  if (!plan) return nb::none();
  nb::dict fields;
  fields["tile_n"] = plan->tile_n;
  fields["blocks"] = plan->blocks;
  fields["workspace"] = Workspace::Aligned(g.N * plan->chunks * 2 *
                                           (fprop ? g.K : g.C) * int64_t{4});
  fields["preferred"] = plan->preferred;
  return fields;
}

nb::object ImplicitGemmColumnPlan(nb::str op, nb::dict geometry, nb::str dtype,
                                  int64_t slice, int multiprocessors) {
  CheckPositive("multiprocessors", multiprocessors);
  CheckPositive("slice", slice);
  const auto plans =
      PlanPointwise(OpOf<Operation>(op.c_str()), GeometryOf(geometry),
                    TypeOf(dtype.c_str()), slice, multiprocessors);
  if (!plans) return nb::none();
  nb::dict fields;
  fields["workspace"] = Workspace::Aligned(plans->workspace);
  fields["adds_bias"] = plans->adds_bias;
  fields["transposes"] = plans->transposes;
  return fields;
}

}  // namespace jax_convbatch
