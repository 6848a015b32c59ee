#include "cuda/pointwise_gemms.h"

#include <algorithm>
#include <optional>

#include "cuda/hopper/columns.h"

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

}  // namespace

PointwiseGemms::PointwiseGemms(Operation operation, const ConvGeometry& g,
                               hopper::Type type)
    : operation_(OpOf(operation)), g_(g), type_(type) {
  int device;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount,
                           device);
  }
}

ConvGeometry PointwiseGemms::Images(int64_t samples) const {
  ConvGeometry images = g_;
  images.N = samples;
  images.D = images.O = 1;
  images.H = images.P = g_.P;
  images.W = images.Q = g_.Q;
  images.C = g_.column_size();
  images.T = images.R = images.S = 1;
  images.stride = images.input_dilation = images.filter_dilation = {1, 1, 1};
  images.pad = {0, 0, 0};
  return images;
}

bool PointwiseGemms::Transposes() const {
  if (operation_ != hopper::Op::kFprop || type_ != hopper::Type::kTf32) {
    return false;
  }
  const auto plan =
      hopper::PlanPath(operation_, Images(1), type_, multiprocessors_);
  return plan && plan->path == hopper::Path::kCopies;
}

int64_t PointwiseGemms::Workspace(int64_t slice) const {
  if (Transposes()) return g_.w_size() * int64_t{sizeof(float)};
  int64_t bytes = 0;
  for (const int64_t samples : {slice, g_.N % slice}) {
    if (samples == 0) continue;
    const auto plan =
        hopper::PlanPath(operation_, Images(samples), type_, multiprocessors_);
    if (!plan) return -1;
    bytes = std::max(bytes, plan->workspace);
  }
  return bytes;
}

Transposition PointwiseGemms::Filter(const void* w, void* workspace) const {
  if (!Transposes()) return {};
  return {static_cast<const float*>(w), static_cast<float*>(workspace),
          static_cast<int>(g_.column_size()), static_cast<int>(g_.K)};
}

cudaError_t PointwiseGemms::Run(cudaStream_t stream, hopper::Stage stage,
                                int64_t samples, const void* lhs,
                                const void* rhs, const void* bias, void* result,
                                void* workspace) const {
  const ConvGeometry images = Images(samples);
  if (Transposes()) {
    const hopper::ColumnsCall call = {
        images,
        hopper::PlanColumns(images, multiprocessors_),
        static_cast<const float*>(lhs),
        static_cast<const float*>(workspace),
        static_cast<const float*>(bias),
        static_cast<float*>(result),
    };
    return hopper::MultiplyColumns(call, stage, stream);
  }
  const auto plan =
      hopper::PlanPath(operation_, images, type_, multiprocessors_);
  if (!plan) return cudaErrorInvalidValue;
  hopper::ConvCall call = {images, type_, *plan, lhs, rhs, result, workspace};
  hopper::Epilogue epilogue{};
  epilogue.bias = bias;
  epilogue.activation = Activation::kIdentity;
  if (bias != nullptr) call.epilogue = &epilogue;
  return hopper::RunPath(operation_, call, multiprocessors_, stage, stream);
}

}  // namespace jax_convbatch
