// SPDX-License-Identifier: Apache-2.0
// Fitted to times of an H100 by `python -m benchmarks fit --write`.
#include "cuda/select/tile_time.h"

namespace jax_convbatch::hopper {
namespace {

// Fitted.
const TileConstants kHalf = {
    {{0.1515, 0.01147, 0.2272, 0.005384, 1.612},
     {0.2747, 0.02185, 0.01958, 0.8679, 1.404},
     {0.1674, 0.01177, 0.05583, 0.7481, 3.084},
     {0.28, 0.05, 0.02, 0.5, 0.5}},
    0.04945,
    0.02551,
    0.6325,
    0.9802,
    5.401,
    3.084,
    7.506,
    1.305,
    {{32, 64, false, false, 1.042},   {32, 64, false, true, 1.000},
     {32, 128, false, false, 1.017},  {32, 128, false, true, 1.054},
     {48, 64, false, false, 0.848},   {48, 64, false, true, 0.988},
     {48, 128, false, false, 0.823},  {48, 128, false, true, 1.001},
     {56, 64, false, false, 1.009},   {56, 64, false, true, 0.988},
     {56, 128, false, false, 1.089},  {56, 128, false, true, 1.024},
     {64, 64, false, false, 0.902},   {64, 64, false, true, 1.019},
     {64, 128, false, false, 0.792},  {64, 128, false, true, 0.833},
     {96, 64, false, false, 1.076},   {96, 64, false, true, 1.007},
     {96, 128, false, false, 1.069},  {96, 128, false, true, 1.018},
     {104, 64, false, false, 0.990},  {104, 64, false, true, 1.020},
     {104, 128, false, false, 0.974}, {104, 128, false, true, 0.945},
     {128, 32, false, false, 1.041},  {128, 32, false, true, 0.916},
     {128, 96, false, false, 1.168},  {128, 96, false, true, 0.981},
     {128, 128, false, false, 0.911}, {128, 128, false, true, 0.932},
     {128, 160, false, false, 1.294}, {128, 160, false, true, 0.945},
     {128, 256, false, false, 1.017}, {128, 256, false, true, 0.988},
     {192, 64, false, false, 0.953},  {192, 64, false, true, 1.025},
     {192, 128, false, false, 0.979}, {192, 128, false, true, 1.017},
     {256, 32, false, false, 1.130},  {256, 32, false, true, 1.022},
     {256, 64, false, false, 1.088},  {256, 64, false, true, 1.085},
     {256, 96, false, false, 1.107},  {256, 96, false, true, 0.980}},
};

const TileConstants kTf32Fprop = {
    {{0.1624, 0.01806, 0.1959, 0.7033, 2.816},
     {0.2226, 0.02729, 0.147, 0.2186, 3.104},
     {0.277, 0.008216, 0.06475, 1.599, 3.135},
     {0.0371, 0.1035, 0.08545, 2.709, 2.709}},
    0.03653,
    0.05756,
    0.009277,
    0.9969,
    10.77,
    1.175,
    3.75,
    0.1637,
    {{24, 64, false, false, 0.989},   {24, 128, false, false, 1.025},
     {32, 64, false, false, 1.005},   {40, 64, false, false, 0.959},
     {40, 128, false, false, 1.081},  {56, 64, false, false, 0.934},
     {56, 128, false, false, 1.068},  {64, 64, false, false, 0.999},
     {72, 64, false, false, 1.010},   {72, 128, false, false, 0.951},
     {96, 64, false, false, 1.042},   {96, 128, false, false, 0.958},
     {104, 64, false, false, 0.895},  {104, 128, false, false, 1.038},
     {112, 64, false, false, 1.027},  {112, 128, false, false, 1.013},
     {128, 128, true, false, 1.048},  {160, 64, false, false, 0.945},
     {160, 128, false, false, 1.015}, {192, 64, false, false, 1.036},
     {192, 128, false, false, 0.958}, {208, 64, false, false, 0.909},
     {208, 128, false, false, 1.029}, {224, 64, false, false, 1.035},
     {224, 128, false, false, 1.079}, {256, 64, false, false, 0.956},
     {256, 64, true, false, 0.953},   {256, 128, false, false, 0.967}},
};

const TileConstants kTf32Dgrad = {
    {{0.01531, 0.3094, 0.04593, 0.7807, 2.509},
     {0.2673, 0.06827, 0.01277, 3.749, 0.7636},
     {0.00537, 0.3688, 0.001103, 1.929, 1.044},
     {0.28, 0.05, 0.02, 0.5, 0.5}},
    0.03855,
    0.0416,
    0.06927,
    0.9927,
    0.0008603,
    0.02125,
    3.374,
    0.8922,
    {{24, 128, false, true, 0.999},  {32, 64, false, true, 1.039},
     {40, 64, false, true, 1.020},   {40, 128, false, true, 0.984},
     {56, 64, false, true, 0.792},   {56, 128, false, true, 0.985},
     {64, 64, false, true, 0.968},   {72, 64, false, true, 1.105},
     {72, 128, false, true, 1.003},  {96, 64, false, true, 1.046},
     {96, 128, false, true, 1.014},  {104, 64, false, true, 0.853},
     {104, 128, false, true, 0.994}, {112, 64, false, true, 0.929},
     {112, 128, false, true, 1.104}, {128, 128, false, true, 0.964},
     {160, 64, false, true, 0.993},  {160, 128, false, true, 1.047},
     {192, 64, false, true, 1.054},  {192, 128, false, true, 1.012},
     {208, 64, false, true, 1.102},  {208, 128, false, true, 1.236},
     {224, 64, false, true, 1.000},  {256, 64, false, true, 0.965}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
