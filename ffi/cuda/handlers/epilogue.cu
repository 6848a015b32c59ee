// SPDX-License-Identifier: Apache-2.0
// One pass over c = conv(x, w) for engines without an epilogue:
// z = scale * c + bias + residual, y = activation(z), one of them in place.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <sstream>
#include <vector>

#include "activation.h"
#include "cuda/common/dtypes.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/reductions/row_sums.cuh"
#include "epilogue_call.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

// A source of row_sums.cuh whose sums nobody wants.
template <typename T, int kVector>
struct EpilogueSource {
  using Acc = Accumulator<T>;
  struct Loaded {
    Vector<T, kVector> c, residual;
  };
  static constexpr int kThreads = 256, kBlocks = 1;
  static constexpr int kUnroll = 1, kMaxLanes = 64;
  static constexpr bool kSpread = false;
  static constexpr int64_t kVectorBytes = sizeof(Vector<T, kVector>);
  Activation activation;
  int64_t K;
  const T *c, *scale, *bias, *residual;
  T *y, *z;
  Acc factor[kVector], offset[kVector];  // of this thread's channels

  __device__ void SetColumn(int64_t first) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int64_t k = (first + i) % K;
      factor[i] = scale == nullptr ? Acc{1} : Convert<Acc>(scale[k]);
      offset[i] = bias == nullptr ? Acc{0} : Convert<Acc>(bias[k]);
    }
  }
  __device__ Loaded Load(int64_t at) const {
    using V = Vector<T, kVector>;
    Loaded loaded;
    loaded.c = reinterpret_cast<const V*>(c)[at];
    if (residual != nullptr) {
      loaded.residual = reinterpret_cast<const V*>(residual)[at];
    }
    return loaded;
  }
  __device__ void Add(const Loaded& loaded, int64_t at,
                      Acc (&)[kVector]) const {
    Vector<T, kVector> pre, post;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      Acc value = Convert<Acc>(loaded.c.values[i]) * factor[i] + offset[i];
      if (residual != nullptr) value += Convert<Acc>(loaded.residual.values[i]);
      pre.values[i] = Convert<T>(value);
      post.values[i] = Convert<T>(Activate(activation, value));
    }
    using V = Vector<T, kVector>;
    if (z != nullptr) reinterpret_cast<V*>(z)[at] = pre;
    reinterpret_cast<V*>(y)[at] = post;
  }
  __device__ Acc Element(int64_t at) const {
    Acc value = Convert<Acc>(c[at]);
    if (scale != nullptr) value *= Convert<Acc>(scale[at % K]);
    if (bias != nullptr) value += Convert<Acc>(bias[at % K]);
    if (residual != nullptr) value += Convert<Acc>(residual[at]);
    if (z != nullptr) z[at] = Convert<T>(value);
    y[at] = Convert<T>(Activate(activation, value));
    return Acc{0};
  }
  __device__ EpilogueSource Batch(int64_t) const { return *this; }
};

// Rows that a thread block passes over.
int64_t ChunkRows(int64_t rows, int64_t K, int64_t itemsize) {
  const int64_t bytes = 32 << 10;
  const int64_t chunk = std::max<int64_t>(1, bytes / (K * itemsize));
  return (std::min(chunk, rows) + 7) / 8 * 8;
}

ffi::Error EpilogueExecute(cudaStream_t stream, ffi::AnyBuffer c,
                           ffi::RemainingArgs operands,
                           ffi::RemainingRets results, int64_t rows, int64_t K,
                           const EpilogueAttributes& attributes) {
  EpilogueCall call;
  JCB_RETURN_IF_ERROR(
      DecodeEpilogue(attributes, {rows, K}, c, operands, results, &call));
  if (c.element_count() == 0) return ffi::Error::Success();
  const cudaError_t status = DispatchDtype(c.element_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVector = 16 / sizeof(T);
    EpilogueSource<T, kVector> source{};
    source.activation = call.activation;
    source.K = K;
    source.c = static_cast<const T*>(call.c);
    source.scale = static_cast<const T*>(call.scale);
    source.bias = static_cast<const T*>(call.bias);
    source.residual = static_cast<const T*>(call.residual);
    source.y = static_cast<T*>(call.y);
    source.z = static_cast<T*>(call.z);
    const RowSums sums = PlanRowSums<kVector, EpilogueSource<T, kVector>>(
        1, rows, K, ChunkRows(rows, K, sizeof(T)));
    return LaunchSumRows<T, kVector>(stream, 1, sums, source, nullptr);
  });
  return ToError(status, [&] {
    std::ostringstream out;
    out << "epilogue of c[" << rows << ", " << K << "]";
    return out.str();
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    CudaEpilogueExecute, EpilogueExecute,
    BindEpilogue(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>()),
    {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_convbatch
