// SPDX-License-Identifier: Apache-2.0
// Fitted to times of an H100 by `python -m benchmarks fit --write`.
#include "cuda/select/tile_time.h"

namespace jax_convbatch::hopper {
namespace {

// Fitted.
const TileConstants kHalf = {
    {{0.1468, 0.01179, 0.2305, 0.007023, 1.635},
     {0.2759, 0.01557, 0.01934, 0.8806, 1.401},
     {0.1923, 0.006963, 0.02605, 1.003, 2.741}},
    0.04929,
    0.02328,
    0.6952,
    0.9832,
    8.681,
    4.01,
    6.04,
    1.199,
    {{32, 64, false, false, 1.112},   {32, 64, false, true, 0.995},
     {32, 128, false, false, 1.039},  {32, 128, false, true, 1.091},
     {48, 64, false, false, 0.816},   {48, 64, false, true, 0.962},
     {48, 128, false, false, 0.806},  {48, 128, false, true, 0.995},
     {56, 64, false, false, 1.051},   {56, 64, false, true, 0.934},
     {56, 128, false, false, 1.121},  {56, 128, false, true, 1.055},
     {64, 64, false, false, 0.877},   {64, 64, false, true, 1.009},
     {64, 128, false, false, 0.773},  {64, 128, false, true, 0.833},
     {96, 64, false, false, 1.082},   {96, 64, false, true, 1.004},
     {96, 128, false, false, 1.074},  {96, 128, false, true, 1.024},
     {104, 64, false, false, 0.996},  {104, 64, false, true, 1.039},
     {104, 128, false, false, 0.978}, {104, 128, false, true, 0.948},
     {128, 32, false, false, 1.047},  {128, 32, false, true, 0.899},
     {128, 96, false, false, 1.193},  {128, 96, false, true, 0.976},
     {128, 128, false, false, 0.909}, {128, 128, false, true, 0.945},
     {128, 160, false, false, 1.311}, {128, 160, false, true, 0.954},
     {128, 256, false, false, 1.014}, {128, 256, false, true, 0.991},
     {192, 64, false, false, 0.950},  {192, 64, false, true, 1.027},
     {192, 128, false, false, 0.967}, {192, 128, false, true, 1.009},
     {256, 32, false, false, 1.126},  {256, 32, false, true, 1.017},
     {256, 64, false, false, 1.085},  {256, 64, false, true, 1.093},
     {256, 96, false, false, 1.103},  {256, 96, false, true, 0.989}},
};

const TileConstants kTf32Fprop = {
    {{0.03051, 0.004974, 0.2604, 0.07246, 4.346},
     {0.2734, 0.09522, 0.01666, 0.3363, 3.308},
     {0.2465, 0.008731, 0.07548, 1.719, 3.211}},
    0.003126,
    0.2345,
    0.01371,
    0.9942,
    8.39,
    2.639,
    82.72,
    0.4353,
    {{24, 64, false, false, 0.953},   {24, 128, false, false, 1.107},
     {32, 64, false, false, 1.024},   {40, 64, false, false, 0.955},
     {40, 128, false, false, 1.174},  {56, 64, false, false, 0.919},
     {56, 128, false, false, 1.079},  {64, 64, false, false, 0.997},
     {72, 64, false, false, 0.996},   {72, 128, false, false, 0.948},
     {96, 64, false, false, 1.062},   {96, 128, false, false, 0.943},
     {104, 64, false, false, 0.886},  {104, 128, false, false, 1.036},
     {112, 64, false, false, 1.030},  {112, 128, false, false, 1.011},
     {128, 128, true, false, 1.136},  {160, 64, false, false, 0.904},
     {160, 128, false, false, 1.045}, {192, 64, false, false, 1.015},
     {192, 128, false, false, 0.958}, {208, 64, false, false, 0.892},
     {208, 128, false, false, 1.050}, {224, 64, false, false, 1.021},
     {224, 128, false, false, 1.061}, {256, 64, false, false, 0.898},
     {256, 64, true, false, 1.034},   {256, 128, false, false, 0.943}},
};

const TileConstants kTf32Dgrad = {
    {{0.06233, 0.1263, 0.06524, 1.594, 1.941},
     {0.001135, 0.149, 0.007896, 4.888, 0.484},
     {0.02141, 0.1566, 0.0003613, 2.045, 1.328}},
    0.05181,
    0.02846,
    1.359,
    0.989,
    0.1037,
    1.069,
    6.113,
    0.7671,
    {{24, 128, false, true, 1.085},  {32, 64, false, true, 0.857},
     {40, 64, false, true, 1.021},   {40, 128, false, true, 1.006},
     {56, 64, false, true, 0.756},   {56, 128, false, true, 1.044},
     {64, 64, false, true, 0.803},   {72, 64, false, true, 0.810},
     {72, 128, false, true, 1.045},  {96, 64, false, true, 1.076},
     {96, 128, false, true, 1.077},  {104, 64, false, true, 0.903},
     {104, 128, false, true, 1.100}, {112, 64, false, true, 0.961},
     {112, 128, false, true, 1.142}, {128, 128, false, true, 1.076},
     {160, 64, false, true, 1.061},  {160, 128, false, true, 1.031},
     {192, 64, false, true, 1.060},  {192, 128, false, true, 1.068},
     {208, 64, false, true, 1.173},  {208, 128, false, true, 1.310},
     {224, 64, false, true, 1.086},  {256, 64, false, true, 1.078}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
