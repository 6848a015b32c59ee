// The kernels of ActGrad, to be instantiated for a dtype.
#ifndef JAX_CONVBATCH_CUDA_ACT_GRAD_CUH_
#define JAX_CONVBATCH_CUDA_ACT_GRAD_CUH_

#include "cuda/bias_grad.h"
#include "cuda/row_sums.cuh"

namespace jax_convbatch {

template <Activation kActivation>
struct GradOf {
  template <typename F>
  __device__ F operator()(F saved, F dy) const {
    return ActivationGrad(kActivation, saved, dy);
  }
};

// For what is rare and need not be fast.
struct GradOfAny {
  Activation activation;

  template <typename F>
  __device__ F operator()(F saved, F dy) const {
    return ActivationGrad(activation, saved, dy);
  }
};

template <typename T>
cudaError_t ActGrad(const ActGradCall& call, cudaStream_t stream) {
  const SumSizes& s = call.sizes;
  auto run = [&](auto vector, auto grad) {
    constexpr int kVector = decltype(vector)::value;
    const GradSource<T, kVector, decltype(grad)> source{
        static_cast<const T*>(call.saved), static_cast<const T*>(call.dy),
        static_cast<T*>(call.dz), grad};
    return SumSource<T, kVector>(stream, s.B, s.rows, s.K, s.chunk_rows, source,
                                 call.partials, call.db);
  };
  return ForVector<T>(s.B, s.rows, s.K, [&](auto vector) {
    if constexpr (decltype(vector)::value == 1) {
      return run(vector, GradOfAny{call.activation});
    } else {
      return DispatchActivation(call.activation, [&](auto tag) {
        return run(vector, GradOf<decltype(tag)::value>());
      });
    }
  });
}

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_ACT_GRAD_CUH_
