// SPDX-License-Identifier: Apache-2.0
// Fitted to times of an H100 by `python -m benchmarks fit --write`.
#include "cuda/select/tile_time.h"

namespace jax_convbatch::hopper {
namespace {

constexpr auto kPingPong = TileKernel::kPingPong;
constexpr auto kCooperative = TileKernel::kCooperative;
constexpr auto kSingleWave = TileKernel::kSingleWave;
constexpr auto kTransposed = TileKernel::kTransposed;
constexpr auto kHalo = TileKernel::kHalo;

// Fitted.
const TileConstants kHalf = {
    {{0.2293, 0.01824, 0.1431, 0.3636, 0.989},
     {0.2942, 0.06363, 0.02016, 0.8341, 1.189},
     {0.0471, 0.13, 0.04817, 0.1773, 3.688},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.1973, 0.0411, 0.08796, 0.1767, 1.507}},
    0.06792,
    0.02516,
    0.413,
    0.991,
    0.403,
    0.7119,
    47.41,
    0.4963,
    {{32, 64, kSingleWave, false, 0.997},
     {32, 64, kSingleWave, true, 1.001},
     {48, 64, kSingleWave, false, 0.988},
     {48, 64, kSingleWave, true, 1.001},
     {48, 128, kSingleWave, false, 1.046},
     {48, 128, kSingleWave, true, 1.021},
     {56, 64, kSingleWave, false, 1.021},
     {56, 64, kSingleWave, true, 0.998},
     {56, 128, kSingleWave, false, 1.023},
     {56, 128, kSingleWave, true, 1.018},
     {64, 64, kPingPong, false, 0.941},
     {64, 64, kPingPong, true, 0.984},
     {64, 128, kPingPong, false, 0.920},
     {64, 128, kPingPong, true, 0.978},
     {96, 64, kSingleWave, false, 0.917},
     {96, 64, kSingleWave, true, 0.959},
     {104, 64, kSingleWave, false, 1.004},
     {104, 64, kSingleWave, true, 1.024},
     {104, 128, kSingleWave, false, 0.911},
     {104, 128, kSingleWave, true, 0.982},
     {128, 32, kPingPong, false, 1.081},
     {128, 32, kPingPong, true, 0.998},
     {128, 64, kHalo, false, 1.011},
     {128, 64, kHalo, true, 1.007},
     {128, 96, kHalo, false, 1.028},
     {128, 96, kHalo, true, 0.876},
     {128, 96, kPingPong, false, 1.044},
     {128, 96, kPingPong, true, 0.893},
     {128, 128, kHalo, false, 0.936},
     {128, 128, kHalo, true, 0.892},
     {128, 128, kPingPong, false, 0.855},
     {128, 128, kPingPong, true, 0.844},
     {128, 160, kHalo, false, 1.148},
     {128, 160, kHalo, true, 0.991},
     {128, 160, kPingPong, false, 1.097},
     {128, 160, kPingPong, true, 0.961},
     {128, 192, kPingPong, false, 0.906},
     {128, 192, kPingPong, true, 1.033},
     {128, 256, kCooperative, false, 1.049},
     {128, 256, kCooperative, true, 0.942},
     {192, 64, kSingleWave, false, 0.967},
     {192, 64, kSingleWave, true, 1.013},
     {192, 128, kSingleWave, false, 1.036},
     {192, 128, kSingleWave, true, 1.010},
     {256, 32, kPingPong, false, 1.002},
     {256, 32, kPingPong, true, 1.048},
     {256, 64, kPingPong, false, 1.041},
     {256, 64, kPingPong, true, 1.303},
     {256, 96, kPingPong, false, 1.042},
     {256, 96, kPingPong, true, 1.071}},
};

const TileConstants kTf32Fprop = {
    {{0.1251, 0.1001, 0.1965, 0.04106, 3.405},
     {0.199, 0.05231, 0.161, 0.3075, 1.767},
     {0.3095, 0.3461, 0.003689, 1.186, 1.777},
     {0.2853, 0.2197, 0.03366, 0.06983, 0.03742},
     {0.2277, 0.05236, 0.05343, 1.391, 0.3598}},
    0.02475,
    0.02587,
    0.01408,
    0.9978,
    0.02557,
    0.09711,
    2286,
    2.806,
    {{24, 64, kSingleWave, false, 1.000},
     {32, 64, kPingPong, false, 1.000},
     {40, 64, kSingleWave, false, 0.983},
     {56, 64, kSingleWave, false, 0.982},
     {56, 128, kSingleWave, false, 1.002},
     {64, 64, kPingPong, false, 1.024},
     {72, 64, kSingleWave, false, 1.035},
     {72, 128, kSingleWave, false, 1.006},
     {96, 64, kSingleWave, false, 1.020},
     {104, 64, kSingleWave, false, 1.071},
     {112, 64, kSingleWave, false, 1.124},
     {128, 64, kHalo, false, 1.004},
     {128, 96, kHalo, false, 0.956},
     {128, 128, kHalo, false, 0.962},
     {128, 128, kTransposed, false, 1.067},
     {128, 160, kHalo, false, 1.028},
     {160, 64, kPingPong, false, 0.965},
     {160, 128, kCooperative, false, 0.968},
     {192, 64, kPingPong, false, 1.012},
     {192, 128, kCooperative, false, 0.986},
     {192, 128, kTransposed, false, 0.942},
     {208, 64, kSingleWave, false, 0.909},
     {208, 128, kSingleWave, false, 0.970},
     {224, 64, kPingPong, false, 0.991},
     {224, 128, kCooperative, false, 1.006},
     {256, 64, kPingPong, false, 0.969},
     {256, 64, kTransposed, false, 1.031},
     {256, 128, kCooperative, false, 1.027}},
};

const TileConstants kTf32Dgrad = {
    {{0.1144, 0.1584, 0.1567, 0.0098, 2.27},
     {0.2707, 0.05014, 0.0202, 1.164, 2.203},
     {0.2992, 0.02096, 0.002184, 1.082, 3.302},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.1934, 0.05044, 0.08338, 0.1232, 1.258}},
    0.05413,
    0.03958,
    0.04761,
    0.9949,
    11.56,
    0.1364,
    4534,
    0.9663,
    {{32, 64, kPingPong, true, 0.987},      {40, 64, kSingleWave, true, 1.016},
     {56, 64, kSingleWave, true, 0.945},    {56, 128, kSingleWave, true, 1.000},
     {64, 64, kPingPong, true, 1.011},      {72, 64, kSingleWave, true, 1.041},
     {72, 128, kSingleWave, true, 0.985},   {96, 64, kSingleWave, true, 0.960},
     {104, 64, kSingleWave, true, 0.981},   {112, 64, kSingleWave, true, 1.050},
     {128, 64, kHalo, true, 1.005},         {128, 96, kHalo, true, 0.960},
     {128, 128, kHalo, true, 0.986},        {128, 128, kPingPong, true, 0.972},
     {128, 160, kHalo, true, 1.032},        {160, 64, kPingPong, true, 0.847},
     {160, 128, kCooperative, true, 1.011}, {192, 64, kPingPong, true, 0.982},
     {192, 128, kPingPong, true, 1.097},    {208, 64, kSingleWave, true, 1.049},
     {208, 128, kSingleWave, true, 0.971},  {224, 64, kPingPong, true, 1.085},
     {256, 64, kPingPong, true, 1.042}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
