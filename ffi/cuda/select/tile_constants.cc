// SPDX-License-Identifier: Apache-2.0
// Fitted to times of an H200 by `python -m benchmarks fit --write`.
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
    {{0.2467, 0.09144, 0.1143, 0.2717, 1.091},
     {0.2949, 0.04573, 0.01997, 0.823, 1.213},
     {0.06469, 0.09125, 0.03183, 0.02714, 3.665},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.2217, 0.08599, 0.0852, 0.05066, 1.678}},
    0.05996,
    0.0202,
    0.5089,
    0.988,
    1.491,
    0.4326,
    29.41,
    1.782,
    {{32, 64, kSingleWave, false, 1.025},
     {32, 64, kSingleWave, true, 1.000},
     {48, 64, kSingleWave, false, 0.990},
     {48, 64, kSingleWave, true, 1.008},
     {48, 128, kSingleWave, false, 1.047},
     {48, 128, kSingleWave, true, 1.033},
     {56, 64, kSingleWave, false, 1.015},
     {56, 64, kSingleWave, true, 0.941},
     {56, 128, kSingleWave, false, 1.048},
     {56, 128, kSingleWave, true, 1.040},
     {64, 64, kPingPong, false, 0.929},
     {64, 64, kPingPong, true, 1.007},
     {64, 128, kPingPong, false, 0.930},
     {64, 128, kPingPong, true, 0.923},
     {96, 64, kSingleWave, false, 0.950},
     {96, 64, kSingleWave, true, 0.961},
     {104, 64, kSingleWave, false, 0.980},
     {104, 64, kSingleWave, true, 1.070},
     {104, 128, kSingleWave, false, 0.970},
     {104, 128, kSingleWave, true, 0.969},
     {128, 32, kPingPong, false, 1.066},
     {128, 32, kPingPong, true, 1.012},
     {128, 64, kHalo, false, 0.992},
     {128, 64, kHalo, true, 1.002},
     {128, 96, kHalo, false, 1.076},
     {128, 96, kHalo, true, 0.950},
     {128, 96, kPingPong, false, 1.092},
     {128, 96, kPingPong, true, 0.905},
     {128, 128, kHalo, false, 0.956},
     {128, 128, kHalo, true, 0.917},
     {128, 128, kPingPong, false, 0.869},
     {128, 128, kPingPong, true, 0.856},
     {128, 160, kHalo, false, 1.109},
     {128, 160, kHalo, true, 1.005},
     {128, 160, kPingPong, false, 1.091},
     {128, 160, kPingPong, true, 0.960},
     {128, 192, kPingPong, false, 0.922},
     {128, 192, kPingPong, true, 1.016},
     {128, 256, kCooperative, false, 1.064},
     {128, 256, kCooperative, true, 0.946},
     {192, 64, kSingleWave, false, 0.956},
     {192, 64, kSingleWave, true, 0.998},
     {192, 128, kSingleWave, false, 0.994},
     {192, 128, kSingleWave, true, 1.085},
     {256, 32, kPingPong, false, 1.018},
     {256, 32, kPingPong, true, 1.028},
     {256, 64, kPingPong, false, 1.129},
     {256, 64, kPingPong, true, 1.158},
     {256, 96, kPingPong, false, 1.066},
     {256, 96, kPingPong, true, 1.030}},
};

const TileConstants kTf32Fprop = {
    {{0.09667, 0.01187, 0.2583, 0.05117, 3.153},
     {0.2229, 0.05405, 0.1203, 0.7242, 1.759},
     {0.3327, 0.05956, 0.03545, 1.357, 2.506},
     {0.2446, 0.3054, 0.02295, 0.2938, 0.6325},
     {0.2363, 0.05141, 0.04107, 1.692, 0.5234}},
    0.01274,
    0.03624,
    0.01319,
    0.9971,
    2.636,
    0.01128,
    226.2,
    6.194,
    {{24, 64, kSingleWave, false, 1.000},
     {32, 64, kPingPong, false, 1.000},
     {40, 64, kSingleWave, false, 0.985},
     {56, 64, kSingleWave, false, 0.978},
     {56, 128, kSingleWave, false, 1.096},
     {64, 64, kPingPong, false, 1.003},
     {72, 64, kSingleWave, false, 1.009},
     {72, 128, kSingleWave, false, 1.057},
     {96, 64, kSingleWave, false, 0.978},
     {104, 64, kSingleWave, false, 1.004},
     {112, 64, kSingleWave, false, 0.994},
     {128, 64, kHalo, false, 1.025},
     {128, 96, kHalo, false, 0.963},
     {128, 128, kHalo, false, 0.974},
     {128, 128, kTransposed, false, 0.994},
     {128, 160, kHalo, false, 1.017},
     {160, 64, kPingPong, false, 1.059},
     {160, 128, kCooperative, false, 0.998},
     {192, 64, kPingPong, false, 1.029},
     {192, 128, kCooperative, false, 1.001},
     {192, 128, kTransposed, false, 0.980},
     {208, 64, kSingleWave, false, 0.813},
     {208, 128, kSingleWave, false, 0.932},
     {224, 64, kPingPong, false, 0.989},
     {224, 128, kCooperative, false, 1.008},
     {256, 64, kPingPong, false, 0.920},
     {256, 64, kTransposed, false, 1.105},
     {256, 128, kCooperative, false, 0.997}},
};

const TileConstants kTf32Dgrad = {
    {{0.1038, 0.1576, 0.1528, 0.01195, 2.39},
     {0.2682, 0.05211, 0.02012, 1.202, 2.529},
     {0.2991, 0.00862, 0.001922, 0.5734, 3.835},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.1384, 0.04651, 0.1272, 0.1159, 1.995}},
    0.06397,
    0.04373,
    0.365,
    0.9931,
    29.79,
    0.2005,
    6158,
    1.01,
    {{32, 64, kPingPong, true, 0.987},      {40, 64, kSingleWave, true, 1.013},
     {56, 64, kSingleWave, true, 0.932},    {56, 128, kSingleWave, true, 1.018},
     {64, 64, kPingPong, true, 0.987},      {72, 64, kSingleWave, true, 1.061},
     {72, 128, kSingleWave, true, 0.996},   {96, 64, kSingleWave, true, 0.968},
     {104, 64, kSingleWave, true, 0.967},   {112, 64, kSingleWave, true, 0.987},
     {128, 64, kHalo, true, 1.007},         {128, 96, kHalo, true, 0.936},
     {128, 128, kHalo, true, 0.979},        {128, 128, kPingPong, true, 0.988},
     {128, 160, kHalo, true, 1.070},        {160, 64, kPingPong, true, 0.878},
     {160, 128, kCooperative, true, 0.992}, {192, 64, kPingPong, true, 1.007},
     {192, 128, kPingPong, true, 1.089},    {208, 64, kSingleWave, true, 1.041},
     {208, 128, kSingleWave, true, 0.956},  {224, 64, kPingPong, true, 1.090},
     {256, 64, kPingPong, true, 1.039}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
