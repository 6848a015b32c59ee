// SPDX-License-Identifier: Apache-2.0
// Fitted to times of an H100 by `python -m benchmarks fit --write`.
#include "cuda/select/tile_time.h"

namespace jax_convbatch::hopper {
namespace {

// Fitted.
const TileConstants kHalf = {
    {{0.1137, 0.2731, 0.04549, 0.0149, 1.721},
     {0.2931, 0.04529, 0.02001, 0.8417, 1.479},
     {0.1966, 0.006191, 0.03176, 0.4835, 3.106}},
    0.03944,
    0.03778,
    0.9924,
    0.6215,
    41.67,
    0.3049,
    139.7,
    0.2131,
    {{32, 64, false, false, 1.058},   {32, 64, false, true, 1.007},
     {32, 128, false, false, 1.027},  {32, 128, false, true, 1.011},
     {48, 64, false, false, 0.797},   {48, 64, false, true, 1.054},
     {48, 128, false, false, 0.965},  {48, 128, false, true, 1.001},
     {56, 64, false, false, 1.021},   {56, 64, false, true, 1.048},
     {56, 128, false, false, 0.840},  {56, 128, false, true, 0.997},
     {64, 64, false, false, 1.229},   {64, 64, false, true, 1.042},
     {64, 128, false, false, 0.785},  {64, 128, false, true, 0.839},
     {96, 64, false, false, 1.054},   {96, 64, false, true, 1.036},
     {96, 128, false, false, 1.113},  {96, 128, false, true, 1.045},
     {104, 64, false, false, 1.062},  {104, 64, false, true, 1.027},
     {104, 128, false, false, 0.991}, {104, 128, false, true, 0.933},
     {128, 32, false, false, 1.037},  {128, 32, false, true, 0.889},
     {128, 96, false, false, 1.258},  {128, 96, false, true, 0.865},
     {128, 128, false, false, 0.932}, {128, 128, false, true, 0.964},
     {128, 160, false, false, 1.313}, {128, 160, false, true, 1.013},
     {128, 256, false, false, 0.983}, {128, 256, false, true, 1.027},
     {192, 64, false, false, 0.971},  {192, 64, false, true, 1.024},
     {192, 128, false, false, 0.947}, {192, 128, false, true, 0.994},
     {256, 32, false, false, 0.999},  {256, 32, false, true, 0.858},
     {256, 64, false, false, 1.026},  {256, 64, false, true, 1.051},
     {256, 96, false, false, 1.062},  {256, 96, false, true, 1.017}},
};

const TileConstants kTf32Fprop = {
    {{0.1847, 0.2017, 0.08266, 0.3079, 3.653},
     {0.233, 0.2959, 0.0168, 0.2085, 3.027},
     {0.2657, 0.009198, 0.06348, 0.8221, 3.628}},
    0.03993,
    0.05774,
    0.8617,
    0.993,
    20.16,
    0.3431,
    353,
    0.07904,
    {{24, 64, false, false, 0.980},   {24, 128, false, false, 1.003},
     {32, 64, false, false, 1.069},   {40, 64, false, false, 1.057},
     {40, 128, false, false, 1.102},  {56, 64, false, false, 0.911},
     {56, 128, false, false, 1.077},  {64, 64, false, false, 0.978},
     {72, 64, false, false, 0.987},   {72, 128, false, false, 0.929},
     {96, 64, false, false, 1.060},   {96, 128, false, false, 0.944},
     {104, 64, false, false, 0.902},  {104, 128, false, false, 1.052},
     {112, 64, false, false, 1.013},  {112, 128, false, false, 1.013},
     {128, 128, true, false, 1.040},  {160, 64, false, false, 0.936},
     {160, 128, false, false, 1.038}, {192, 64, false, false, 1.032},
     {192, 128, false, false, 0.973}, {208, 64, false, false, 0.933},
     {208, 128, false, false, 1.018}, {224, 64, false, false, 1.013},
     {224, 128, false, false, 1.077}, {256, 64, false, false, 0.915},
     {256, 64, true, false, 1.003},   {256, 128, false, false, 0.968}},
};

const TileConstants kTf32Dgrad = {
    {{0.1515, 0.01587, 0.1258, 0.1866, 3.361},
     {0.2328, 0.1257, 0.008466, 3.849, 1.144},
     {0.242, 0.1257, 0.001415, 1.232, 3.014}},
    0.006094,
    0.02649,
    1.082,
    0.9917,
    1.263,
    0.6049,
    114.7,
    13.69,
    {{32, 64, false, true, 1.035},   {40, 64, false, true, 1.023},
     {40, 128, false, true, 1.001},  {56, 64, false, true, 0.873},
     {56, 128, false, true, 0.846},  {64, 64, false, true, 0.915},
     {72, 64, false, true, 1.049},   {72, 128, false, true, 1.036},
     {96, 64, false, true, 0.996},   {96, 128, false, true, 0.901},
     {104, 64, false, true, 1.083},  {104, 128, false, true, 1.031},
     {112, 64, false, true, 1.099},  {112, 128, false, true, 1.035},
     {128, 128, false, true, 1.112}, {160, 64, false, true, 0.949},
     {160, 128, false, true, 1.037}, {192, 64, false, true, 0.957},
     {192, 128, false, true, 1.049}, {208, 64, false, true, 1.097},
     {208, 128, false, true, 0.967}, {224, 64, false, true, 1.108},
     {256, 64, false, true, 0.911}},
};
// Up to here.

}  // namespace

const TileConstants& ConstantsOf(Op op, Type type) {
  if (type != Type::kTf32) return kHalf;
  return op == Op::kFprop ? kTf32Fprop : kTf32Dgrad;
}

}  // namespace jax_convbatch::hopper
