// SPDX-License-Identifier: Apache-2.0
// One operation, and the layer that may follow it, as a cuDNN graph.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "activation.h"
#include "conv_geometry.h"
#include "cuda/common/conv_call.h"
#include "cuda/cudnn/frontend.h"

namespace jax_convbatch::cudnn {

// What follows fprop in the same graph: activation(scale * y + bias +
// residual).
struct Layer {
  bool scale = false, bias = false, residual = false;
  // Whether the pre-activation is a result, too.
  bool save_input = false;
  Activation activation = Activation::kIdentity;

  bool empty() const {
    return !scale && !bias && !residual && !save_input &&
           activation == Activation::kIdentity;
  }
};

// All that a graph depends on.
struct Problem {
  Operation operation;
  ConvGeometry g;
  cudnn_frontend::DataType_t operand, result;
  Layer layer;

  Problem WithBatch(int64_t n) const {
    Problem other = *this;
    other.g.N = n;
    return other;
  }
};

// Names of the arrays of a graph.
enum Uid : int64_t {
  kLhs = 1,
  kRhs = 2,
  kResult = 3,
  kScale = 4,
  kBias = 5,
  kResidual = 6,
  kInput = 7,
};

// A graph whose list of engine configurations can be looked into.
class ConvGraph : public cudnn_frontend::graph::Graph {
 public:
  cudnn_frontend::graph::Execution_plan_list& configs() { return plans; }
  cudnnBackendDescriptor_t operations() const {
    return operation_graph->get_raw_desc();
  }
};

using GraphPtr = std::shared_ptr<ConvGraph>;

// How many a graph has: two, or three.
int SpatialAxes(const ConvGeometry& g);

// Why no graph says it; nullopt where one does. What cuDNN has no kernel for
// shows later.
std::optional<std::string> CannotExpress(const Problem& problem);

// The graph of x[N, D, H, W, C] and y likewise, and of w[K, T, R, S, C /
// groups], the order that cuDNN's kernels read. Throws std::runtime_error
// where cuDNN refuses it.
GraphPtr MakeGraph(const Problem& problem, cudnnHandle_t handle);

}  // namespace jax_convbatch::cudnn
