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
    {{0.196, 0.04113, 0.1726, 0.0156, 1.631},
     {0.2746, 0.02661, 0.01967, 0.8243, 1.373},
     {0.06615, 0.07459, 0.04202, 0.4539, 3.634},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.2248, 0.03942, 0.03438, 0.1053, 2.122}},
    0.0585,
    0.02146,
    0.7525,
    0.9856,
    0.5861,
    1.618,
    11.44,
    0.5405,
    {{32, 64, kSingleWave, false, 1.047},
     {32, 64, kSingleWave, true, 0.996},
     {48, 64, kSingleWave, false, 0.871},
     {48, 64, kSingleWave, true, 1.023},
     {48, 128, kSingleWave, false, 0.849},
     {48, 128, kSingleWave, true, 1.024},
     {56, 64, kSingleWave, false, 1.012},
     {56, 64, kSingleWave, true, 0.947},
     {56, 128, kSingleWave, false, 1.151},
     {56, 128, kSingleWave, true, 1.036},
     {64, 64, kPingPong, false, 0.905},
     {64, 64, kPingPong, true, 1.013},
     {64, 128, kPingPong, false, 0.792},
     {64, 128, kPingPong, true, 0.871},
     {96, 64, kSingleWave, false, 1.074},
     {96, 64, kSingleWave, true, 0.940},
     {104, 64, kSingleWave, false, 0.982},
     {104, 64, kSingleWave, true, 1.052},
     {104, 128, kSingleWave, false, 0.955},
     {104, 128, kSingleWave, true, 0.933},
     {128, 32, kPingPong, false, 1.083},
     {128, 32, kPingPong, true, 0.945},
     {128, 64, kHalo, false, 0.993},
     {128, 64, kHalo, true, 1.002},
     {128, 96, kHalo, false, 1.060},
     {128, 96, kHalo, true, 0.950},
     {128, 96, kPingPong, false, 1.148},
     {128, 96, kPingPong, true, 0.963},
     {128, 128, kHalo, false, 0.962},
     {128, 128, kHalo, true, 0.954},
     {128, 128, kPingPong, false, 0.893},
     {128, 128, kPingPong, true, 0.926},
     {128, 160, kHalo, false, 1.097},
     {128, 160, kHalo, true, 0.981},
     {128, 160, kPingPong, false, 1.229},
     {128, 160, kPingPong, true, 0.939},
     {128, 256, kCooperative, false, 1.010},
     {128, 256, kCooperative, true, 0.994},
     {192, 64, kSingleWave, false, 0.947},
     {192, 64, kSingleWave, true, 1.016},
     {192, 128, kSingleWave, false, 0.986},
     {192, 128, kSingleWave, true, 1.047},
     {256, 32, kPingPong, false, 1.141},
     {256, 32, kPingPong, true, 1.025},
     {256, 64, kPingPong, false, 1.071},
     {256, 64, kPingPong, true, 1.104},
     {256, 96, kPingPong, false, 1.083},
     {256, 96, kPingPong, true, 0.970}},
};

const TileConstants kTf32Fprop = {
    {{0.04683, 0.09528, 0.2315, 0.5676, 3.083},
     {0.2444, 0.2813, 0.003263, 0.3346, 3.022},
     {0.2855, 0.01125, 0.0544, 1.726, 2.776},
     {0.252, 0.2205, 0.01343, 2.158, 2.158},
     {0.225, 0.0505, 0.02939, 0.9551, 2.747}},
    0.04559,
    0.02085,
    0.005764,
    0.9974,
    16.16,
    0.4762,
    265.2,
    0.7565,
    {{24, 64, kSingleWave, false, 0.991},
     {32, 64, kPingPong, false, 0.999},
     {40, 64, kSingleWave, false, 0.951},
     {56, 64, kSingleWave, false, 0.944},
     {56, 128, kSingleWave, false, 1.097},
     {64, 64, kPingPong, false, 0.991},
     {72, 64, kSingleWave, false, 0.999},
     {72, 128, kSingleWave, false, 0.995},
     {96, 64, kSingleWave, false, 1.042},
     {104, 64, kSingleWave, false, 0.909},
     {112, 64, kSingleWave, false, 0.975},
     {128, 64, kHalo, false, 1.024},
     {128, 96, kHalo, false, 0.971},
     {128, 128, kHalo, false, 0.975},
     {128, 128, kTransposed, false, 1.045},
     {128, 160, kHalo, false, 1.020},
     {160, 64, kPingPong, false, 1.041},
     {160, 128, kCooperative, false, 1.041},
     {192, 64, kPingPong, false, 1.033},
     {192, 128, kCooperative, false, 0.974},
     {208, 64, kSingleWave, false, 0.855},
     {208, 128, kSingleWave, false, 1.016},
     {224, 64, kPingPong, false, 1.013},
     {224, 128, kCooperative, false, 1.016},
     {256, 64, kPingPong, false, 0.940},
     {256, 64, kTransposed, false, 0.957},
     {256, 128, kCooperative, false, 0.965}},
};

const TileConstants kTf32Dgrad = {
    {{0.02082, 0.2708, 0.08663, 0.4586, 2.762},
     {0.2766, 0.05116, 0.01479, 4.898, 0.2803},
     {0.3302, 0.1255, 0.0009964, 1.688, 1.931},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.1656, 0.05446, 0.0796, 0.1951, 3.245}},
    0.02067,
    0.02119,
    0.002544,
    0.9955,
    1.283,
    0.0624,
    760.6,
    2.895,
    {{32, 64, kPingPong, true, 0.991},      {40, 64, kSingleWave, true, 1.049},
     {56, 64, kSingleWave, true, 0.891},    {56, 128, kSingleWave, true, 1.003},
     {64, 64, kPingPong, true, 0.998},      {72, 64, kSingleWave, true, 1.078},
     {72, 128, kSingleWave, true, 0.965},   {96, 64, kSingleWave, true, 1.021},
     {104, 64, kSingleWave, true, 0.854},   {112, 64, kSingleWave, true, 0.899},
     {128, 64, kHalo, true, 1.033},         {128, 96, kHalo, true, 0.966},
     {128, 128, kHalo, true, 0.932},        {128, 128, kPingPong, true, 0.938},
     {128, 160, kHalo, true, 1.046},        {160, 64, kPingPong, true, 1.044},
     {160, 128, kCooperative, true, 1.011}, {192, 64, kPingPong, true, 1.080},
     {192, 128, kCooperative, true, 0.995}, {208, 64, kSingleWave, true, 0.889},
     {208, 128, kSingleWave, true, 1.041},  {224, 64, kPingPong, true, 0.997},
     {256, 64, kPingPong, true, 0.979}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
