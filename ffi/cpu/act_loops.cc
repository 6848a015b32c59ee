// SPDX-License-Identifier: Apache-2.0
#include "act_loops.h"

#include "vector_clones.h"

namespace jax_convbatch {

// Each case is a loop of its own in the function that is cloned: a loop in a
// lambda would be compiled for the oldest processor.
#define JCB_FOR_EACH_ACTIVATION(LOOP) \
  switch (a) {                        \
    LOOP(Activation::kIdentity)       \
    LOOP(Activation::kRelu)           \
    LOOP(Activation::kRelu6)          \
    LOOP(Activation::kLeakyRelu)      \
    LOOP(Activation::kElu)            \
    LOOP(Activation::kSigmoid)        \
    LOOP(Activation::kTanh)           \
    LOOP(Activation::kGelu)           \
    LOOP(Activation::kGeluExact)      \
    LOOP(Activation::kSilu)           \
  }
#define JCB_ACTIVATE(kind)                                           \
  case kind:                                                         \
    for (int64_t i = 0; i < count; ++i) y[i] = Activate(kind, z[i]); \
    break;
#define JCB_GRAD(kind)                               \
  case kind:                                         \
    for (int64_t i = 0; i < count; ++i)              \
      dz[i] = ActivationGrad(kind, saved[i], dy[i]); \
    break;

#define JCB_LOOPS(F)                                                           \
  JCB_VECTOR_CLONES                                                            \
  void ActivateTile(Activation a, const F* z, F* y,                            \
                    int64_t count){JCB_FOR_EACH_ACTIVATION(                    \
      JCB_ACTIVATE)} JCB_VECTOR_CLONES void GradTile(Activation a,             \
                                                     const F* saved,           \
                                                     const F* dy, F* dz,       \
                                                     int64_t count){           \
      JCB_FOR_EACH_ACTIVATION(                                                 \
          JCB_GRAD)} JCB_VECTOR_CLONES void AddRows(const F* in, int64_t rows, \
                                                    int64_t K,                 \
                                                    F* __restrict__ sum) {     \
    for (int64_t r = 0; r < rows; ++r, in += K) {                              \
      for (int64_t k = 0; k < K; ++k) sum[k] += in[k];                         \
    }                                                                          \
  }                                                                            \
  JCB_VECTOR_CLONES                                                            \
  void ScaleAndAdd(const F* scale, const F* bias, const F* residual,           \
                   F* __restrict__ z, int64_t rows, int64_t K) {               \
    for (int64_t r = 0; r < rows; ++r, z += K) {                               \
      if (scale != nullptr) {                                                  \
        for (int64_t k = 0; k < K; ++k) z[k] *= scale[k];                      \
      }                                                                        \
      if (bias != nullptr) {                                                   \
        for (int64_t k = 0; k < K; ++k) z[k] += bias[k];                       \
      }                                                                        \
      if (residual != nullptr) {                                               \
        for (int64_t k = 0; k < K; ++k) z[k] += residual[k];                   \
        residual += K;                                                         \
      }                                                                        \
    }                                                                          \
  }

JCB_LOOPS(float)
JCB_LOOPS(double)

#undef JCB_LOOPS
#undef JCB_GRAD
#undef JCB_ACTIVATE
#undef JCB_FOR_EACH_ACTIVATION

}  // namespace jax_convbatch
