#include "cuda/pointwise_gemms.h"

#include <algorithm>
#include <optional>

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

// The rule's plan, but for images so small that tiles of 128 x 64 are one wave:
// sums of columns are long, and small tiles read them too often.
std::optional<hopper::Plan> PlanProduct(hopper::Op op, const ConvGeometry& g,
                                        hopper::Type type,
                                        int multiprocessors) {
  auto plan = hopper::PlanPath(op, g, type, multiprocessors);
  if (!plan || op != hopper::Op::kFprop || type != hopper::Type::kTf32 ||
      plan->path != hopper::Path::kCopies) {
    return plan;
  }
  const int64_t tiles =
      (g.N * g.output_pixels() + 127) / 128 * ((g.K + 63) / 64);
  if (tiles <= multiprocessors && 4 * tiles >= 3 * multiprocessors) {
    plan->tile_m = 128;
    plan->tile_n = 64;
  }
  return plan;
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

int64_t PointwiseGemms::Workspace(int64_t slice) const {
  int64_t bytes = 0;
  for (const int64_t samples : {slice, g_.N % slice}) {
    if (samples == 0) continue;
    const auto plan =
        PlanProduct(operation_, Images(samples), type_, multiprocessors_);
    if (!plan) return -1;
    bytes = std::max(bytes, plan->workspace);
  }
  return bytes;
}

cudaError_t PointwiseGemms::Run(cudaStream_t stream, hopper::Stage stage,
                                int64_t samples, const void* lhs,
                                const void* rhs, const void* bias, void* result,
                                void* workspace) const {
  const ConvGeometry images = Images(samples);
  const auto plan = PlanProduct(operation_, images, type_, multiprocessors_);
  if (!plan) return cudaErrorInvalidValue;
  hopper::ConvCall call = {images, type_, *plan, lhs, rhs, result, workspace};
  hopper::Epilogue epilogue{};
  epilogue.bias = bias;
  epilogue.activation = Activation::kIdentity;
  if (bias != nullptr) call.epilogue = &epilogue;
  return hopper::RunPath(operation_, call, multiprocessors_, stage, stream);
}

}  // namespace jax_convbatch
