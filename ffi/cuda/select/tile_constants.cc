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
    {{0.01248, 0.06286, 0.2504, 1.086, 3.533},
     {0.2473, 0.2071, 0.04222, 0.6384, 2.599},
     {0.2823, 0.1745, 0.03247, 0.8929, 5.361},
     {0.1358, 0.2151, 0.1029, 0.195, 1.748},
     {0.2046, 0.06883, 0.05905, 0.06533, 2.804}},
    0.04179,
    0.04401,
    0.01363,
    0.9971,
    0.3613,
    0.543,
    1.527e+04,
    3.891,
    {{24, 64, kSingleWave, false, 1.003},
     {32, 64, kPingPong, false, 1.002},
     {40, 64, kSingleWave, false, 0.978},
     {56, 64, kSingleWave, false, 0.978},
     {56, 128, kSingleWave, false, 1.095},
     {64, 64, kPingPong, false, 0.961},
     {72, 64, kSingleWave, false, 1.023},
     {72, 128, kSingleWave, false, 1.058},
     {96, 64, kSingleWave, false, 0.989},
     {104, 64, kSingleWave, false, 1.003},
     {112, 64, kSingleWave, false, 1.004},
     {128, 64, kHalo, false, 1.017},
     {128, 96, kHalo, false, 0.960},
     {128, 128, kHalo, false, 0.986},
     {128, 128, kTransposed, false, 0.921},
     {128, 160, kHalo, false, 1.030},
     {160, 64, kPingPong, false, 1.013},
     {160, 128, kCooperative, false, 1.037},
     {192, 64, kPingPong, false, 1.015},
     {192, 128, kCooperative, false, 1.019},
     {192, 128, kTransposed, false, 0.978},
     {208, 64, kSingleWave, false, 0.838},
     {208, 128, kSingleWave, false, 0.942},
     {224, 64, kPingPong, false, 0.988},
     {224, 128, kCooperative, false, 0.996},
     {256, 64, kPingPong, false, 1.020},
     {256, 64, kTransposed, false, 1.135},
     {256, 128, kCooperative, false, 0.962}},
};

const TileConstants kTf32Dgrad = {
    {{0.05826, 0.2389, 0.09443, 0.01476, 2.807},
     {0.151, 0.3327, 0.01886, 1.035, 1.798},
     {0.2733, 0.05992, 0.007974, 0.1153, 4.742},
     {0.28, 0.05, 0.02, 0.5, 0.5},
     {0.2141, 0.05543, 0.04907, 0.1465, 2.385}},
    0.06518,
    0.03672,
    0.3196,
    0.9932,
    3.292,
    0.1051,
    2231,
    0.967,
    {{32, 64, kPingPong, true, 0.991},      {40, 64, kSingleWave, true, 1.015},
     {56, 64, kSingleWave, true, 0.910},    {56, 128, kSingleWave, true, 0.997},
     {64, 64, kPingPong, true, 1.012},      {72, 64, kSingleWave, true, 1.052},
     {72, 128, kSingleWave, true, 0.992},   {96, 64, kSingleWave, true, 0.967},
     {104, 64, kSingleWave, true, 0.976},   {112, 64, kSingleWave, true, 0.998},
     {128, 64, kHalo, true, 1.040},         {128, 96, kHalo, true, 0.999},
     {128, 128, kHalo, true, 0.945},        {128, 128, kPingPong, true, 0.927},
     {128, 160, kHalo, true, 1.022},        {160, 64, kPingPong, true, 0.928},
     {160, 128, kCooperative, true, 0.963}, {192, 64, kPingPong, true, 0.968},
     {192, 128, kPingPong, true, 1.039},    {208, 64, kSingleWave, true, 1.048},
     {208, 128, kSingleWave, true, 0.972},  {224, 64, kPingPong, true, 1.084},
     {256, 64, kPingPong, true, 1.084}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
