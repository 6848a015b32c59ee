// SPDX-License-Identifier: Apache-2.0
// The element types of the CPU engine, and conversion between them and the type
// that the arithmetic is done in: f64 for f64, f32 for everything else.
#ifndef JAX_CONVBATCH_CPU_HALF_H_
#define JAX_CONVBATCH_CPU_HALF_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "parallel.h"

namespace jax_convbatch {

// Bit patterns only: compilers differ in which 16-bit types they have.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float ToCompute(float value) { return value; }
inline double ToCompute(double value) { return value; }
inline float ToCompute(BFloat16 value) {
  return BitCast<float>(uint32_t{value.bits} << 16);
}
inline float ToCompute(Half value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t rest = uint32_t{value.bits & 0x7fffu};
  if (rest >= 0x7c00u) {  // inf and nan
    return BitCast<float>(sign | 0x7f800000u | rest << 13);
  }
  // Shifted into place, the exponent is too small by 127 - 15. A subnormal
  // number counts units of 2^-24; as a float it is normal, so that flushing
  // subnormal numbers to zero does no harm.
  if (rest >= 0x400u) return BitCast<float>(sign | (rest << 13) + 0x38000000u);
  const float units = static_cast<float>(static_cast<int32_t>(rest));
  return BitCast<float>(sign |
                        BitCast<uint32_t>(units * BitCast<float>(0x33800000u)));
}

template <typename T>
T FromCompute(Compute<T> value);

template <>
inline float FromCompute<float>(float value) {
  return value;
}
template <>
inline double FromCompute<double>(double value) {
  return value;
}
// Both round to nearest, ties to even.
template <>
inline BFloat16 FromCompute<BFloat16>(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // nan: keep it one
    return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
template <>
inline Half FromCompute<Half>(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const uint16_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {  // nan
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds to 2^16 or more: inf
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {
    // Subnormal: adding 0.5 puts the unit in the last place of a float where
    // that of the result is, so the addition does the rounding.
    half = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// to[i] = from[i] in To's precision, on all threads.
template <typename To, typename From>
void ConvertAll(const From* from, To* to, int64_t count) {
  ParallelFor(count, int64_t{1} << 15, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      to[i] = FromCompute<To>(ToCompute(from[i]));
    }
  });
}

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_HALF_H_
