// SPDX-License-Identifier: Apache-2.0
// The transcendental functions of the activations, in float and double. The
// float ones are polynomials without branches, so that loops over them are
// vectorised; on the GPU with its own exponential and reciprocal, within 2 +
// |x| units in the last place.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define JCB_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Inlined into whatever it is compiled for: see cpu/vector_clones.h.
#define JCB_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace jax_convbatch::math {

// exp(x), on the host within 2 units in the last place and saturated outside
// [-87, 88].
JCB_HOST_DEVICE float Exp(float x) {
#ifdef __CUDA_ARCH__
  // Of subnormal results 0, as to keep them takes three instructions more.
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
#else
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  // Adding 1.5 2^23 rounds to a whole number.
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * (r * r) + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return e * power;
#endif
}

JCB_HOST_DEVICE float Quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}
JCB_HOST_DEVICE double Quotient(double a, double b) { return a / b; }

JCB_HOST_DEVICE float Tanh(float x) {
  // A rational minimax approximation; beyond 9 it is 1 in float.
  float c = x < -9.0f ? -9.0f : x;
  c = c > 9.0f ? 9.0f : c;
  const float s = c * c;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s + -8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return Quotient(c * p, q);
}

// exp(x) - 1 for x <= 0.
JCB_HOST_DEVICE float Expm1Negative(float x) {
  const float t = Tanh(0.5f * x);
  return Quotient(2.0f * t, 1.0f - t);
}

// The normal distribution's: (1 + erf(x / sqrt(2))) / 2.
JCB_HOST_DEVICE float NormalCdf(float x) {
  // A rational minimax approximation of erf; beyond 4 it is 1 in float.
  float c = x * 0.70710678f;
  c = c < -4.0f ? -4.0f : c;
  c = c > 4.0f ? 4.0f : c;
  const float s = c * c;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s + -2.10102402082508e-06f;
  p = p * s + -5.69250639462346e-05f;
  p = p * s + -7.34990630326855e-04f;
  p = p * s + -2.95459980854025e-03f;
  p = p * s + -1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s + -2.13374055278905e-04f;
  q = q * s + -1.68282697438203e-03f;
  q = q * s + -7.37332916720468e-03f;
  q = q * s + -1.42647390514189e-02f;
  return 0.5f + 0.5f * Quotient(c * p, q);
}

JCB_HOST_DEVICE double Exp(double x) { return exp(x); }
JCB_HOST_DEVICE double Tanh(double x) { return tanh(x); }
JCB_HOST_DEVICE double Expm1Negative(double x) { return expm1(x); }
JCB_HOST_DEVICE double NormalCdf(double x) {
  return 0.5 * erfc(-x * 0.70710678118654752);
}

template <typename F>
JCB_HOST_DEVICE F Sigmoid(F x) {
  return Quotient(F(1), F(1) + Exp(-x));
}

}  // namespace jax_convbatch::math
