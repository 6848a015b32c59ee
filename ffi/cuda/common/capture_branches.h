// SPDX-License-Identifier: Apache-2.0
// Kernels of one call that need not wait for each other, as branches of the
// graph that the stream is captured into. Without a capture they follow one
// another.
#ifndef JAX_CONVBATCH_CUDA_COMMON_CAPTURE_BRANCHES_H_
#define JAX_CONVBATCH_CUDA_COMMON_CAPTURE_BRANCHES_H_

#include <cuda_runtime_api.h>

#include <vector>

namespace jax_convbatch {

// No second stream and no event, which calls of several threads would share:
// what is launched next depends on what the capture says that it does.
class CaptureBranches {
 public:
  explicit CaptureBranches(cudaStream_t stream) : stream_(stream) {}

  // What was launched so far comes before all branches.
  cudaError_t Fork() {
    const cudaError_t error = Last(&fork_);
    ends_.clear();
    return error;
  }

  // Ends a branch, and begins the next at the fork.
  cudaError_t Next() {
    if (!captured_) return cudaSuccess;
    std::vector<cudaGraphNode_t> last;
    const cudaError_t error = Last(&last);
    if (error != cudaSuccess) return error;
    ends_.insert(ends_.end(), last.begin(), last.end());
    return DependOn(fork_);
  }

  // Ends the last branch: what is launched then comes after all of them.
  cudaError_t Join() {
    if (!captured_) return cudaSuccess;
    std::vector<cudaGraphNode_t> last;
    const cudaError_t error = Last(&last);
    if (error != cudaSuccess) return error;
    ends_.insert(ends_.end(), last.begin(), last.end());
    return DependOn(ends_);
  }

 private:
  // What the next launch would depend on.
  cudaError_t Last(std::vector<cudaGraphNode_t>* nodes) {
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t* first = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    size_t count = 0;
    const cudaError_t error = cudaStreamGetCaptureInfo(
        stream_, &status, nullptr, nullptr, &first, &edges, &count);
    if (error != cudaSuccess) return error;
    captured_ = status == cudaStreamCaptureStatusActive;
    if (captured_) nodes->assign(first, first + count);
    return cudaSuccess;
  }

  cudaError_t DependOn(std::vector<cudaGraphNode_t>& nodes) {
    return cudaStreamUpdateCaptureDependencies(
        stream_, nodes.data(), nullptr, nodes.size(),
        cudaStreamSetCaptureDependencies);
  }

  cudaStream_t stream_;
  bool captured_ = false;
  std::vector<cudaGraphNode_t> fork_, ends_;
};

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_COMMON_CAPTURE_BRANCHES_H_
