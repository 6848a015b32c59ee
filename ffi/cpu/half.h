// SPDX-License-Identifier: Apache-2.0
// The element types of the CPU engine, and conversion between them and the type
// that the arithmetic is done in: f64 for f64, f32 for everything else.
#pragma once

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

// One of two, without a branch that compilers might move arithmetic into: they
// vectorise none under a condition.
inline uint32_t Select(bool first, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - uint32_t{first};
  return (a & mask) | (b & ~mask);
}

inline float ToCompute(float value) { return value; }
inline double ToCompute(double value) { return value; }
inline float ToCompute(BFloat16 value) {
  return BitCast<float>(uint32_t{value.bits} << 16);
}
inline float ToCompute(Half value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t rest = uint32_t{value.bits & 0x7fffu};
  // Shifted into place, the exponent is too small by 127 - 15; that of inf and
  // nan, by twice as much. A subnormal number counts units of 2^-24; as a float
  // it is normal, so that flushing subnormal numbers to zero does no harm.
  const uint32_t normal =
      (rest << 13) + Select(rest >= 0x7c00u, 0x70000000u, 0x38000000u);
  const float units = static_cast<float>(static_cast<int32_t>(rest));
  const uint32_t subnormal =
      BitCast<uint32_t>(units * BitCast<float>(0x33800000u));
  return BitCast<float>(sign | Select(rest >= 0x400u, normal, subnormal));
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
  const uint32_t normal =
      (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Subnormal: adding 0.5 puts the unit in the last place of a float where that
  // of the result is, so the addition does the rounding. Of large numbers no
  // such sum is formed.
  const uint32_t small = Select(magnitude < 0x38800000u, magnitude, 0u);
  const uint32_t subnormal =
      BitCast<uint32_t>(BitCast<float>(small) + 0.5f) - 0x3f000000u;
  uint32_t half = Select(magnitude >= 0x38800000u, normal, subnormal);
  half = Select(magnitude >= 0x477ff000u, 0x7c00u, half);  // 2^16 or more
  half = Select(magnitude > 0x7f800000u, 0x7e00u, half);   // nan
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
