// SPDX-License-Identifier: Apache-2.0
// The engine implicit_gemm: convolutions without columns in memory. Those of
// one group or of wide ones, of bf16, f16 and f32 (as TF32, or by six
// products), run on Hopper tensor cores: sm90/. Those of other groups, and f32
// at the precision HIGHEST, run on any GPU of compute capability 8.0 or later:
// sm80/.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/common/memo.h"
#include "cuda/common/stage.h"
#include "cuda/common/status.h"
#include "cuda/cublas/product_wgrad.h"
#include "cuda/handlers/handlers.h"
#include "cuda/handlers/layer_call.h"
#include "cuda/select/configs.h"
#include "cuda/select/hopper_device.h"
#include "cuda/select/paths.h"
#include "cuda/sm80/direct/direct.h"
#include "cuda/sm80/simt/simt.h"
#include "cuda/sm90/kernels/single_wave/single_wave_plan.h"
#include "epilogue_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

template <typename Op>
constexpr Op OpOf(Operation operation) {
  switch (operation) {
    case Operation::kFprop:
      return Op::kFprop;
    case Operation::kDgrad:
      return Op::kDgrad;
    default:
      return Op::kWgrad;
  }
}

// As HopperType. f32 is multiplied as it is by most of these kernels.
std::optional<direct::Type> DirectType(ffi::DataType dtype, int64_t precision) {
  switch (dtype) {
    case ffi::BF16:
      return direct::Type::kBf16;
    case ffi::F16:
      return direct::Type::kF16;
    case ffi::F32:
      return precision == 0 ? direct::Type::kTf32 : direct::Type::kF32;
    default:
      return std::nullopt;
  }
}

// The plan in Python does not ask for it: it knows `Plan.epilogue`.
ffi::Error NoEpilogueHere(const ConvGeometry& g) {
  return ffi::Error::InvalidArgument(
      "jax_convbatch: implicit_gemm has no epilogue on this path, in " +
      Describe("fprop_act", g));
}

ffi::Error NoConfig(Operation operation, const ConvGeometry& g,
                    std::string_view config) {
  return ffi::Error::InvalidArgument(
      "jax_convbatch: implicit_gemm has no configuration '" +
      std::string(config) + "' on this GPU for " +
      Describe(Name(operation), g));
}

// Runs `kernels`, a function of a plan and its workspace.
template <typename Plan, typename Kernels>
ffi::Error RunPlan(Operation operation, const ConvBuffers& buffers,
                   const ConvGeometry& g, std::string_view config,
                   const std::optional<Plan>& plan, Kernels&& kernels) {
  auto where = [&] { return Describe(Name(operation), g); };
  if (!plan) return NoConfig(operation, g, config);
  Workspace workspace(buffers.workspace);
  char* pieces = workspace.Take<char>(plan->workspace);
  JCB_RETURN_IF_ERROR(workspace.Check(Name(operation), g));
  return ToError(kernels(*plan, pieces), where);
}

// What a plan depends on, and which kernels it needs.
CallKey KeyOf(int device, Operation operation, const ConvGeometry& g,
              ffi::DataType dtype, int64_t precision, std::string_view config,
              const hopper::Epilogue* epilogue) {
  CallKey key;
  key.Add(device).Add(operation).Add(g).Add(dtype).Add(precision).Add(config);
  if (epilogue != nullptr) {
    key.Add(epilogue->activation)
        .Add(epilogue->scale != nullptr)
        .Add(epilogue->bias != nullptr)
        .Add(epilogue->residual != nullptr)
        .Add(epilogue->z != nullptr)
        .Add(epilogue->bitmask != nullptr);
  }
  return key;
}

ffi::Error Run(const CallKey& key, Operation operation,
               const ConvBuffers& buffers, const ConvGeometry& g,
               int64_t precision, std::string_view config, bool launch,
               cudaStream_t stream, const hopper::Epilogue* epilogue) {
  JCB_RETURN_IF_ERROR(CheckBuffers(operation, g, buffers));
  const ffi::DataType dtype = buffers.lhs.element_type();
  const auto hopper_type = HopperType(dtype, precision);
  const auto direct_type = DirectType(dtype, precision);
  const auto hopper_op = OpOf<hopper::Op>(operation);
  const bool exact = g.groups == 1 && dtype == ffi::F32 && precision >= kHigh;
  if (!(g.groups > 1 ? direct_type.has_value()
                     : exact || hopper_type.has_value()) ||
      buffers.rhs.element_type() != dtype ||
      buffers.result.element_type() != dtype) {
    return UnsupportedDtypes(operation, g);
  }
  bool is_hopper;
  auto where = [&] { return Describe(Name(operation), g); };
  JCB_RETURN_IF_ERROR(CheckDevice(g.groups > 1 || exact, where, &is_hopper));
  int multiprocessors;
  JCB_RETURN_IF_ERROR(
      ToError(DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors),
              where));
  const void* const lhs = buffers.lhs.untyped_data();
  const void* const rhs = buffers.rhs.untyped_data();
  void* const result = buffers.result.untyped_data();
  const Stage stage = launch ? Stage::kLaunch : Stage::kPrepare;

  // Else they run on any GPU.
  const bool of_groups =
      is_hopper && hopper_type &&
      hopper::TakesGroups(hopper_op, g, *hopper_type, multiprocessors);
  const bool any_gpu = g.groups > 1 && !of_groups;
  if (any_gpu || (g.groups == 1 && is_hopper)) {
    const auto op = OpOf<direct::Op>(operation);
    const auto plan = direct::FindPlan(op, g, *direct_type, multiprocessors,
                                       is_hopper, config);
    if (any_gpu || plan) {
      if (epilogue != nullptr) return NoEpilogueHere(g);
      return RunPlan(operation, buffers, g, config, plan,
                     [&](const direct::Plan& plan, void* pieces) {
                       return direct::Run(
                           op,
                           {g, *direct_type, plan, lhs, rhs, result, pieces},
                           stage, stream);
                     });
    }
  }
  if (exact) {
    if (epilogue != nullptr) return NoEpilogueHere(g);
    const auto op = OpOf<simt::Op>(operation);
    return RunPlan(operation, buffers, g, config,
                   ProcessMemo<std::optional<simt::Plan>>().Get(
                       key,
                       [&] {
                         return simt::FindPlan(op, g, multiprocessors,
                                               is_hopper, config);
                       }),
                   [&](const simt::Plan& plan, void* pieces) {
                     return simt::Run(op, {g, plan, lhs, rhs, result, pieces},
                                      stage, stream);
                   });
  }
  if (of_groups && epilogue != nullptr) return NoEpilogueHere(g);
  const std::optional<ProductWgrad> product =
      operation == Operation::kWgrad
          ? PlanProductWgrad(g, *hopper_type, multiprocessors)
          : std::nullopt;
  if (product) {
    if (!config.empty() && config != kProductConfig) {
      return NoConfig(operation, g, config);
    }
    Workspace workspace(buffers.workspace);
    char* parts = workspace.Take<char>(product->workspace);
    JCB_RETURN_IF_ERROR(workspace.Check(Name(operation), g));
    return ToError(RunProductWgrad(g, *hopper_type, *product, stage, stream,
                                   lhs, rhs, result, parts),
                   where);
  }
  return RunPlan(
      operation, buffers, g, config,
      ProcessMemo<std::optional<hopper::Plan>>().Get(
          key,
          [&] {
            auto plan = hopper::FindConfig(hopper_op, g, *hopper_type,
                                           multiprocessors, config);
            // Here, as it takes longer than a launch.
            if (plan && epilogue != nullptr &&
                plan->path == hopper::Path::kCopies) {
              const hopper::Type type = *hopper_type;
              plan = hopper::WithEpilogue(hopper::Fold(hopper_op, g, type),
                                          type, *plan, *epilogue);
            }
            return plan;
          }),
      [&](const hopper::Plan& plan, void* pieces) {
        return hopper::RunPath(
            hopper_op,
            {g, *hopper_type, plan, lhs, rhs, result, pieces, epilogue},
            multiprocessors, stage, stream);
      });
}

// As above; a call that was prepared once needs nothing more.
ffi::Error Run(Operation operation, const ConvBuffers& buffers,
               const ConvGeometry& g, int64_t precision,
               std::string_view config, bool launch, cudaStream_t stream,
               const hopper::Epilogue* epilogue = nullptr) {
  int device;
  JCB_RETURN_IF_ERROR(ToError(cudaGetDevice(&device),
                              [&] { return Describe(Name(operation), g); }));
  const CallKey key = KeyOf(device, operation, g, buffers.lhs.element_type(),
                            precision, config, epilogue);
  auto run = [&] {
    return Run(key, operation, buffers, g, precision, config, launch, stream,
               epilogue);
  };
  struct Tag;
  return launch ? run() : PrepareOnce<Tag>(key, run);
}

template <Operation operation>
ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                   ffi::Result<ffi::AnyBuffer> result,
                   ffi::Result<ffi::AnyBuffer> workspace, const ConvGeometry& g,
                   int64_t /*slice*/, int64_t precision,
                   std::string_view config) {
  return Run(operation, {lhs, rhs, *result, *workspace}, g, precision, config,
             /*launch=*/true, stream);
}

// Runs before Execute, outside any capture, so that Execute finds the kernels
// loaded.
template <Operation operation>
ffi::Error Initialize(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                      ffi::Result<ffi::AnyBuffer> result,
                      ffi::Result<ffi::AnyBuffer> workspace,
                      const ConvGeometry& g, int64_t /*slice*/,
                      int64_t precision, std::string_view config) {
  return Run(operation, {lhs, rhs, *result, *workspace}, g, precision, config,
             /*launch=*/false, nullptr);
}

// The result after z, a bit for each element of y.
ffi::Error DecodeBitmask(const EpilogueAttributes& a,
                         const EpilogueShape& shape,
                         const ffi::RemainingRets& results, void** data) {
  auto buffer = results.get<ffi::AnyBuffer>(a.save_input ? 1 : 0);
  if (!buffer.has_value()) return buffer.error();
  if (shape.K % 8 != 0 || (**buffer).element_type() != ffi::U8 ||
      static_cast<int64_t>((**buffer).element_count()) != shape.size() / 8) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: size or dtype of the signs of a layer's result");
  }
  *data = (**buffer).untyped_data();
  return ffi::Error::Success();
}

ffi::Error RunAct(const ffi::AnyBuffer& x, const ffi::AnyBuffer& w,
                  const ffi::RemainingArgs& operands, const ffi::AnyBuffer& y,
                  const ffi::AnyBuffer& workspace,
                  const ffi::RemainingRets& results, const ConvGeometry& g,
                  int64_t precision, std::string_view config,
                  const EpilogueAttributes& attributes, bool launch,
                  cudaStream_t stream) {
  const ffi::DataType dtype = x.element_type();
  const EpilogueShape shape{g.N * g.output_pixels(), g.K};
  EpilogueCall call;
  void* bitmask = nullptr;
  JCB_RETURN_IF_ERROR(
      DecodeOperands(attributes, shape, dtype, operands, &call));
  if (attributes.save_input) {
    JCB_RETURN_IF_ERROR(DecodeResult(shape, dtype, results, 0, &call.z));
  }
  if (attributes.save_signs) {
    if (call.activation != Activation::kRelu) {
      return ffi::Error::InvalidArgument(
          "jax_convbatch: signs are those of relu");
    }
    JCB_RETURN_IF_ERROR(DecodeBitmask(attributes, shape, results, &bitmask));
  }
  for (const void* data : {call.scale, call.bias, call.residual,
                           static_cast<const void*>(call.z)}) {
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
      return ffi::Error::Internal(
          "jax_convbatch: a buffer is not aligned to 16 bytes in " +
          Describe("fprop_act", g));
    }
  }
  hopper::Epilogue epilogue{};
  epilogue.scale = call.scale;
  epilogue.bias = call.bias;
  epilogue.residual = call.residual;
  epilogue.z = call.z;
  epilogue.bitmask = static_cast<uint8_t*>(bitmask);
  epilogue.activation = call.activation;
  return Run(Operation::kFprop, {x, w, y, workspace}, g, precision, config,
             launch, stream, &epilogue);
}

ffi::Error ActExecute(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w,
                      ffi::RemainingArgs operands,
                      ffi::Result<ffi::AnyBuffer> y,
                      ffi::Result<ffi::AnyBuffer> workspace,
                      ffi::RemainingRets results, const ConvGeometry& g,
                      int64_t /*slice*/, int64_t precision,
                      std::string_view config,
                      const EpilogueAttributes& attributes) {
  return RunAct(x, w, operands, *y, *workspace, results, g, precision, config,
                attributes, /*launch=*/true, stream);
}

ffi::Error ActInitialize(ffi::AnyBuffer x, ffi::AnyBuffer w,
                         ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> y,
                         ffi::Result<ffi::AnyBuffer> workspace,
                         ffi::RemainingRets results, const ConvGeometry& g,
                         int64_t /*slice*/, int64_t precision,
                         std::string_view config,
                         const EpilogueAttributes& attributes) {
  return RunAct(x, w, operands, *y, *workspace, results, g, precision, config,
                attributes, /*launch=*/false, nullptr);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropExecute, Execute<Operation::kFprop>,
                              BindConfiguredExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitDgradExecute, Execute<Operation::kDgrad>,
                              BindConfiguredExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitWgradExecute, Execute<Operation::kWgrad>,
                              BindConfiguredExecute(),
                              {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ImplicitFpropActExecute, ActExecute,
    BindLayer(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropActInitialize, ActInitialize,
                              BindLayer(ffi::Ffi::BindInitialize()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitFpropInitialize,
                              Initialize<Operation::kFprop>,
                              BindConfiguredInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitDgradInitialize,
                              Initialize<Operation::kDgrad>,
                              BindConfiguredInitialize());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ImplicitWgradInitialize,
                              Initialize<Operation::kWgrad>,
                              BindConfiguredInitialize());

}  // namespace jax_convbatch
