// SPDX-License-Identifier: Apache-2.0
#include "cuda/deform/pointwise_gemms.h"

#include <algorithm>
#include <optional>

#include "cuda/common/memo.h"
#include "cuda/sm90/kernels/padding/pad_plan.h"

namespace jax_convbatch {
namespace {

hopper::Op OpOf(Operation operation) {
  switch (operation) {
    case Operation::kFprop:
      return hopper::Op::kFprop;
    case Operation::kDgrad:
      return hopper::Op::kDgrad;
    default:
      return hopper::Op::kWgrad;
  }
}

ConvGeometry Images(const ConvGeometry& g, int64_t samples) {
  ConvGeometry images = g;
  images.N = samples;
  images.D = images.O = 1;
  images.H = images.P = g.P;
  images.W = images.Q = g.Q;
  images.C = g.column_size();
  images.T = images.R = images.S = 1;
  images.stride = images.input_dilation = images.filter_dilation = {1, 1, 1};
  images.pad = {0, 0, 0};
  return images;
}

}  // namespace

std::optional<PointwisePlans> PlanPointwise(Operation operation,
                                            const ConvGeometry& g,
                                            hopper::Type type, int64_t slice,
                                            int multiprocessors) {
  const bool fprop = operation == Operation::kFprop;
  const bool tf32 = type == hopper::Type::kTf32;
  if (g.groups > 1 || !(fprop || tf32)) return std::nullopt;
  if (g.y_size() == 0 || g.column_size() == 0) return std::nullopt;
  const hopper::Op op = OpOf(operation);
  const ConvGeometry sample = Images(g, 1);
  const auto one = hopper::PlanPath(op, sample, type, multiprocessors);
  if (!one || !one->preferred) return std::nullopt;
  // cuBLAS takes columns as they are where these have to be padded.
  const bool pads = one->path == hopper::Path::kPads;
  if (operation != Operation::kWgrad && pads) return std::nullopt;
  PointwisePlans plans{};
  plans.multiprocessors = multiprocessors;
  plans.transposes = fprop && tf32 && one->path == hopper::Path::kCopies;
  plans.adds_bias =
      plans.transposes || (fprop && hopper::HasEpilogue(*one, sample, type));
  auto plan = [&](int64_t samples, PointwisePlans::Product* product) {
    if (samples == 0) return true;
    const ConvGeometry images = Images(g, samples);
    if (plans.transposes) {
      product->columns = hopper::PlanColumnGemm(images, multiprocessors);
      return true;
    }
    const auto found = hopper::PlanPath(op, images, type, multiprocessors);
    if (!found) return false;
    // The workspace is the same for any number of samples.
    product->plan = hopper::WithoutPartials(*found);
    plans.workspace = std::max(plans.workspace, product->plan.workspace);
    return true;
  };
  if (!plan(slice, &plans.whole)) return std::nullopt;
  if (!plan(g.N % slice, &plans.rest)) return std::nullopt;
  if (plans.transposes) plans.workspace = g.w_size() * int64_t{sizeof(float)};
  return plans;
}

PointwiseGemms::PointwiseGemms(Operation operation, const ConvGeometry& g,
                               hopper::Type type, int64_t slice)
    : operation_(OpOf(operation)), g_(g), type_(type), slice_(slice) {
  int device, multiprocessors;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                             device) != cudaSuccess) {
    return;
  }
  CallKey key;
  key.Add(device).Add(operation).Add(g).Add(type).Add(slice);
  plans_ = ProcessMemo<std::optional<PointwisePlans>>().Get(key, [&] {
    return PlanPointwise(operation, g, type, slice, multiprocessors);
  });
}

Transposition PointwiseGemms::Filter(const void* w, void* workspace) const {
  if (!plans_->transposes) return {};
  return {static_cast<const float*>(w), static_cast<float*>(workspace),
          static_cast<int>(g_.column_size()), static_cast<int>(g_.K)};
}

cudaError_t PointwiseGemms::Run(cudaStream_t stream, Stage stage,
                                int64_t samples, const void* lhs,
                                const void* rhs, const void* bias, void* result,
                                void* workspace) const {
  const ConvGeometry images = Images(g_, samples);
  const PointwisePlans::Product& product =
      samples == slice_ ? plans_->whole : plans_->rest;
  if (plans_->transposes) {
    const hopper::ColumnGemmCall call = {
        images,
        product.columns,
        static_cast<const float*>(lhs),
        static_cast<const float*>(workspace),
        static_cast<const float*>(bias),
        static_cast<float*>(result),
    };
    return hopper::RunColumnGemm(call, stage, stream);
  }
  hopper::ConvCall call = {images, type_,  product.plan, lhs,
                           rhs,    result, workspace};
  hopper::Epilogue epilogue{};
  epilogue.bias = bias;
  epilogue.activation = Activation::kIdentity;
  if (bias != nullptr) call.epilogue = &epilogue;
  return hopper::RunPath(operation_, call, plans_->multiprocessors, stage,
                         stream);
}

}  // namespace jax_convbatch
