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
    {{0.2399, 0.01985, 0.1434, 0.3228, 0.9757},
     {0.297, 0.07499, 0.02025, 0.8073, 1.145},
     {0.1217, 0.04133, 0.07938, 0.09179, 3.844},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.1908, 0.02358, 0.09201, 0.03634, 1.578}},
    0.06897,
    0.02547,
    0.3493,
    0.9877,
    2.515,
    0.8178,
    29.33,
    0.6325,
    {{32, 64, kSingleWave, false, 1.036},
     {32, 64, kSingleWave, true, 1.000},
     {48, 64, kSingleWave, false, 0.962},
     {48, 64, kSingleWave, true, 0.980},
     {48, 128, kSingleWave, false, 1.036},
     {48, 128, kSingleWave, true, 1.037},
     {56, 64, kSingleWave, false, 1.018},
     {56, 64, kSingleWave, true, 0.997},
     {56, 128, kSingleWave, false, 1.021},
     {56, 128, kSingleWave, true, 1.035},
     {64, 64, kPingPong, false, 0.939},
     {64, 64, kPingPong, true, 0.990},
     {64, 128, kPingPong, false, 0.912},
     {64, 128, kPingPong, true, 0.967},
     {96, 64, kSingleWave, false, 0.893},
     {96, 64, kSingleWave, true, 0.976},
     {104, 64, kSingleWave, false, 1.009},
     {104, 64, kSingleWave, true, 1.034},
     {104, 128, kSingleWave, false, 0.910},
     {104, 128, kSingleWave, true, 0.978},
     {128, 32, kPingPong, false, 1.078},
     {128, 32, kPingPong, true, 1.002},
     {128, 64, kHalo, false, 0.978},
     {128, 64, kHalo, true, 1.007},
     {128, 96, kHalo, false, 1.049},
     {128, 96, kHalo, true, 0.891},
     {128, 96, kPingPong, false, 1.075},
     {128, 96, kPingPong, true, 0.888},
     {128, 128, kHalo, false, 0.956},
     {128, 128, kHalo, true, 0.905},
     {128, 128, kPingPong, false, 0.851},
     {128, 128, kPingPong, true, 0.829},
     {128, 160, kHalo, false, 1.171},
     {128, 160, kHalo, true, 1.011},
     {128, 160, kPingPong, false, 1.089},
     {128, 160, kPingPong, true, 0.949},
     {128, 192, kPingPong, false, 0.900},
     {128, 192, kPingPong, true, 1.027},
     {128, 256, kCooperative, false, 1.058},
     {128, 256, kCooperative, true, 0.950},
     {192, 64, kSingleWave, false, 0.921},
     {192, 64, kSingleWave, true, 1.002},
     {192, 128, kSingleWave, false, 1.046},
     {192, 128, kSingleWave, true, 1.007},
     {256, 32, kPingPong, false, 1.019},
     {256, 32, kPingPong, true, 1.044},
     {256, 64, kPingPong, false, 1.092},
     {256, 64, kPingPong, true, 1.278},
     {256, 96, kPingPong, false, 1.031},
     {256, 96, kPingPong, true, 1.048}},
};

const TileConstants kTf32Fprop = {
    {{0.05836, 0.06287, 0.2635, 0.03758, 3.127},
     {0.1966, 0.05166, 0.1625, 0.2192, 1.805},
     {0.3291, 0.1297, 0.0273, 1.426, 2.324},
     {0.2728, 0.2275, 0.03657, 0.2321, 0.1414},
     {0.2375, 0.05232, 0.05077, 1.785, 0.1398}},
    0.02955,
    0.01953,
    0.0185,
    0.9963,
    0.8134,
    0.05431,
    755,
    4.904,
    {{24, 64, kSingleWave, false, 0.999},
     {32, 64, kPingPong, false, 0.999},
     {40, 64, kSingleWave, false, 0.988},
     {56, 64, kSingleWave, false, 0.982},
     {56, 128, kSingleWave, false, 1.020},
     {64, 64, kPingPong, false, 0.989},
     {72, 64, kSingleWave, false, 1.026},
     {72, 128, kSingleWave, false, 1.022},
     {96, 64, kSingleWave, false, 1.007},
     {104, 64, kSingleWave, false, 1.036},
     {112, 64, kSingleWave, false, 1.081},
     {128, 64, kHalo, false, 1.009},
     {128, 96, kHalo, false, 0.941},
     {128, 128, kHalo, false, 0.956},
     {128, 128, kTransposed, false, 1.078},
     {128, 160, kHalo, false, 1.016},
     {160, 64, kPingPong, false, 1.018},
     {160, 128, kCooperative, false, 0.986},
     {192, 64, kPingPong, false, 1.035},
     {192, 128, kCooperative, false, 1.005},
     {192, 128, kTransposed, false, 0.974},
     {208, 64, kSingleWave, false, 0.837},
     {208, 128, kSingleWave, false, 0.945},
     {224, 64, kPingPong, false, 1.012},
     {224, 128, kCooperative, false, 1.021},
     {256, 64, kPingPong, false, 0.983},
     {256, 64, kTransposed, false, 1.040},
     {256, 128, kCooperative, false, 1.029}},
};

const TileConstants kTf32Dgrad = {
    {{0.07859, 0.1386, 0.177, 0.006571, 2.229},
     {0.2748, 0.05055, 0.02016, 1.189, 2.496},
     {0.2963, 0.005682, 0.0018, 1.126, 3.278},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.1689, 0.05051, 0.1065, 0.06379, 1.525}},
    0.06133,
    0.04286,
    0.09931,
    0.9909,
    43.88,
    0.1221,
    6039,
    0.9989,
    {{32, 64, kPingPong, true, 0.986},      {40, 64, kSingleWave, true, 1.012},
     {56, 64, kSingleWave, true, 0.927},    {56, 128, kSingleWave, true, 1.004},
     {64, 64, kPingPong, true, 0.990},      {72, 64, kSingleWave, true, 1.044},
     {72, 128, kSingleWave, true, 0.993},   {96, 64, kSingleWave, true, 0.969},
     {104, 64, kSingleWave, true, 0.986},   {112, 64, kSingleWave, true, 1.050},
     {128, 64, kHalo, true, 1.005},         {128, 96, kHalo, true, 0.937},
     {128, 128, kHalo, true, 0.976},        {128, 128, kPingPong, true, 0.997},
     {128, 160, kHalo, true, 1.038},        {160, 64, kPingPong, true, 0.844},
     {160, 128, kCooperative, true, 0.979}, {192, 64, kPingPong, true, 0.984},
     {192, 128, kPingPong, true, 1.125},    {208, 64, kSingleWave, true, 1.051},
     {208, 128, kSingleWave, true, 0.981},  {224, 64, kPingPong, true, 1.093},
     {256, 64, kPingPong, true, 1.065}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
