// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/graph.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace jax_convbatch::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// One spatial axis of a convolution.
struct Axis {
  int64_t input, taps, output, stride, pad, dilation;

  int64_t window() const { return (taps - 1) * dilation + 1; }

  // The high padding, of those that give this output: a stride makes several
  // alike. That of the low side, if it is one, since kernels for equal sides
  // are more; never less than 0, if it can be.
  int64_t post() const {
    const int64_t least = (output - 1) * stride + window() - input - pad;
    return std::clamp(pad, least, least + stride - 1);
  }
};

// The axes that a graph has: two, unless the first one of three has a part in
// the convolution. A depth that has none belongs to the batch.
std::vector<Axis> AxesOf(const ConvGeometry& g) {
  std::vector<Axis> axes = {
      {g.D, g.T, g.O, g.stride.d, g.pad.d, g.filter_dilation.d},
      {g.H, g.R, g.P, g.stride.h, g.pad.h, g.filter_dilation.h},
      {g.W, g.S, g.Q, g.stride.w, g.pad.w, g.filter_dilation.w}};
  const Axis& depth = axes.front();
  if (depth.taps == 1 && depth.stride == 1 && depth.pad == 0 &&
      depth.input == depth.output) {
    axes.erase(axes.begin());
  }
  return axes;
}

class Builder {
 public:
  explicit Builder(const Problem& problem)
      : problem_(problem), axes_(AxesOf(problem.g)) {
    batch_ = problem.g.N * (axes_.size() == 2 ? problem.g.D : 1);
    const fe::DataType_t sums = problem.operand == fe::DataType_t::DOUBLE
                                    ? fe::DataType_t::DOUBLE
                                    : fe::DataType_t::FLOAT;
    graph_->set_compute_data_type(sums)
        .set_intermediate_data_type(sums)
        .set_io_data_type(problem.operand);
  }

  GraphPtr Build(cudnnHandle_t handle) {
    switch (problem_.operation) {
      case Operation::kFprop:
        Fprop();
        break;
      case Operation::kDgrad:
        Dgrad();
        break;
      default:
        Wgrad();
    }
    Throw(graph_->validate());
    Throw(graph_->build_operation_graph(handle));
    return graph_;
  }

 private:
  std::vector<int64_t> Each(int64_t Axis::* field) const {
    std::vector<int64_t> values;
    for (const Axis& axis : axes_) values.push_back(axis.*field);
    return values;
  }

  template <typename Attributes>
  Attributes Convolution() const {
    std::vector<int64_t> post;
    for (const Axis& axis : axes_) post.push_back(axis.post());
    Attributes attributes;
    attributes.set_pre_padding(Each(&Axis::pad))
        .set_post_padding(post)
        .set_stride(Each(&Axis::stride))
        .set_dilation(Each(&Axis::dilation));
    return attributes;
  }

  // Sizes {outer, channels, spatial...}, channels innermost in memory.
  static void ChannelsLast(const Tensor& tensor, int64_t outer,
                           int64_t channels,
                           const std::vector<int64_t>& spatial) {
    std::vector<int64_t> sizes = {outer, channels};
    sizes.insert(sizes.end(), spatial.begin(), spatial.end());
    std::vector<int64_t> strides(sizes.size());
    strides[1] = 1;
    int64_t stride = channels;
    for (size_t i = sizes.size() - 1; i >= 2; --i) {
      strides[i] = stride;
      stride *= sizes[i];
    }
    strides[0] = stride;
    tensor->set_dim(sizes).set_stride(strides);
  }

  Tensor Input(Uid uid, fe::DataType_t type) {
    return graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(uid).set_data_type(type));
  }

  void Output(const Tensor& tensor, Uid uid) {
    tensor->set_output(true).set_uid(uid).set_data_type(problem_.result);
  }

  void AsX(const Tensor& tensor) const {
    ChannelsLast(tensor, batch_, problem_.g.C, Each(&Axis::input));
  }
  void AsY(const Tensor& tensor) const {
    ChannelsLast(tensor, batch_, problem_.g.K, Each(&Axis::output));
  }
  void AsW(const Tensor& tensor) const {
    ChannelsLast(tensor, problem_.g.K, problem_.g.group_C(), Each(&Axis::taps));
  }

  Tensor PerChannel(Uid uid) {
    const Tensor tensor = Input(uid, problem_.result);
    ChannelsLast(tensor, 1, problem_.g.K,
                 std::vector<int64_t>(axes_.size(), 1));
    return tensor;
  }

  Tensor Pointwise(fe::PointwiseMode_t mode, const Tensor& a, const Tensor& b) {
    return graph_->pointwise(a, b,
                             fe::graph::Pointwise_attributes().set_mode(mode));
  }

  void Fprop() {
    const Tensor x = Input(kLhs, problem_.operand);
    const Tensor w = Input(kRhs, problem_.operand);
    AsX(x);
    AsW(w);
    Tensor y = graph_->conv_fprop(
        x, w, Convolution<fe::graph::Conv_fprop_attributes>());
    AsY(y);
    y = Followed(y);
    Output(y, kResult);
  }

  Tensor Followed(Tensor z) {
    const Layer& layer = problem_.layer;
    if (layer.scale) {
      z = Pointwise(fe::PointwiseMode_t::MUL, z, PerChannel(kScale));
    }
    if (layer.bias) {
      z = Pointwise(fe::PointwiseMode_t::ADD, z, PerChannel(kBias));
    }
    if (layer.residual) {
      const Tensor residual = Input(kResidual, problem_.result);
      AsY(residual);
      z = Pointwise(fe::PointwiseMode_t::ADD, z, residual);
    }
    if (layer.activation == Activation::kIdentity) return z;
    if (layer.save_input) Output(z, kInput);
    return graph_->pointwise(z, ActivationOf(layer.activation));
  }

  static fe::graph::Pointwise_attributes ActivationOf(Activation activation) {
    fe::graph::Pointwise_attributes attributes;
    switch (activation) {
      case Activation::kRelu:
        return attributes.set_mode(fe::PointwiseMode_t::RELU_FWD);
      case Activation::kRelu6:
        return attributes.set_mode(fe::PointwiseMode_t::RELU_FWD)
            .set_relu_lower_clip(0.0f)
            .set_relu_upper_clip(6.0f);
      case Activation::kLeakyRelu:
        return attributes.set_mode(fe::PointwiseMode_t::RELU_FWD)
            .set_relu_lower_clip_slope(static_cast<float>(kLeakySlope));
      case Activation::kElu:
        return attributes.set_mode(fe::PointwiseMode_t::ELU_FWD);
      case Activation::kSigmoid:
        return attributes.set_mode(fe::PointwiseMode_t::SIGMOID_FWD);
      case Activation::kTanh:
        return attributes.set_mode(fe::PointwiseMode_t::TANH_FWD);
      case Activation::kGelu:
        return attributes.set_mode(fe::PointwiseMode_t::GELU_APPROX_TANH_FWD);
      case Activation::kGeluExact:
        return attributes.set_mode(fe::PointwiseMode_t::GELU_FWD);
      default:
        return attributes.set_mode(fe::PointwiseMode_t::SWISH_FWD);
    }
  }

  void Dgrad() {
    const Tensor dy = Input(kLhs, problem_.operand);
    const Tensor w = Input(kRhs, problem_.operand);
    AsY(dy);
    AsW(w);
    const Tensor dx = graph_->conv_dgrad(
        dy, w, Convolution<fe::graph::Conv_dgrad_attributes>());
    AsX(dx);
    Output(dx, kResult);
  }

  void Wgrad() {
    const Tensor x = Input(kLhs, problem_.operand);
    const Tensor dy = Input(kRhs, problem_.operand);
    AsX(x);
    AsY(dy);
    const Tensor dw = graph_->conv_wgrad(
        dy, x, Convolution<fe::graph::Conv_wgrad_attributes>());
    AsW(dw);
    Output(dw, kResult);
  }

  const Problem& problem_;
  const std::vector<Axis> axes_;
  int64_t batch_;
  GraphPtr graph_ = std::make_shared<ConvGraph>();
};

}  // namespace

int SpatialAxes(const ConvGeometry& g) {
  return static_cast<int>(AxesOf(g).size());
}

std::optional<std::string> CannotExpress(const Problem& problem) {
  const ConvGeometry& g = problem.g;
  if (!g.input_dilation.all(1)) {
    return "an input dilation beside strides";
  }
  for (const Axis& axis : AxesOf(g)) {
    if (axis.pad < 0 || axis.post() < 0) return "negative padding";
  }
  if (std::max({g.x_size(), g.w_size(), g.y_size()}) > INT32_MAX) {
    return "an array of more than 2^31 - 1 elements";
  }
  return std::nullopt;
}

GraphPtr MakeGraph(const Problem& problem, cudnnHandle_t handle) {
  return Builder(problem).Build(handle);
}

}  // namespace jax_convbatch::cudnn
