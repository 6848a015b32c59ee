// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/conv/conv3d.h"
#include "cuda/sm90/problem/subproblem_axis.h"

namespace jax_convbatch::hopper {
namespace {

// With its slices left out.
ConvGeometry PlaneOf(const ConvGeometry& g) {
  ConvGeometry plane = g;
  plane.D = plane.T = plane.O = 1;
  plane.pad.d = 0;
  return plane;
}

// Else boxes of 64 channels are filled up with zeros where several taps of
// depth side by side would fill them, and to copy these (depth.py) costs less.
bool FillsBoxes(const ConvGeometry& g, int64_t channels) {
  auto boxes = [](int64_t n) { return (n + 63) / 64; };
  return 4 * g.T * boxes(channels) <= 5 * boxes(g.T * channels);
}

}  // namespace

Axes3d Axes3dOf(Op op, const ConvGeometry& g) {
  const ConvGeometry plane = PlaneOf(g);
  if (op == Op::kFprop) {
    Activations out = OutputOf(g);
    out.n *= g.O;
    return {FpropSubproblem(plane),
            FpropAxis(g.D, g.O, g.T, g.stride.d, g.pad.d, g.filter_dilation.d),
            InputOf(g), out, g.D};
  }
  Activations out = InputOf(g);
  out.n *= g.D;
  return {DgradSubproblems(plane)[0],
          DgradAxis(g.D, g.O, g.T, 1, g.pad.d, g.filter_dilation.d, 0),
          OutputOf(g), out, g.O};
}

std::optional<Plan> Plan3d(Op op, const ConvGeometry& g, Type type,
                           int multiprocessors) {
  constexpr int64_t kMostSlices = 1 << 20;
  auto in_range = [](int64_t n) { return 1 <= n && n < kMostSlices; };
  if (op == Op::kWgrad || type == Type::kTf32 || g.T == 1 ||
      !IsPlain2d(PlaneOf(g), type) || !in_range(g.D) || !in_range(g.T) ||
      !in_range(g.O) || !in_range(g.filter_dilation.d) ||
      !in_range(g.pad.d + kMostSlices / 2) || g.stride.d > 8 ||
      (op == Op::kDgrad && !g.stride.all(1)) ||
      !FillsBoxes(g, op == Op::kFprop ? g.C : g.K)) {
    return std::nullopt;
  }
  const Axes3d axes = Axes3dOf(op, g);
  const SubproblemAxes& plane = axes.plane;
  // The engine's, of five coordinates.
  auto reaches = [](const SubproblemAxis& a) {
    return int64_t{a.taps.count - 1} * a.taps.offset_step <= 31;
  };
  if (!IsEncodable(type, axes.walk(64)) || !reaches(axes.d) ||
      !reaches(plane.h) || !reaches(plane.w) ||
      !IsWalkable(type, axes.in, axes.out, plane)) {
    return std::nullopt;
  }
  const int64_t pixels = axes.out.n * plane.h.count * plane.w.count;
  const int64_t channels = axes.out.c;
  auto tiles = [&](int m, int n) {
    return (pixels + m - 1) / m * ((channels + n - 1) / n);
  };
  if (channels > 64) {
    if (tiles(128, 128) >= 2 * multiprocessors) {
      return Plan{128, 128, multiprocessors, 0};
    }
    if (tiles(64, 128) >= multiprocessors / 2) {
      return Plan{64, 128, multiprocessors, 0};
    }
  } else if (tiles(256, 64) >= 4 * multiprocessors) {
    return Plan{256, 64, multiprocessors, 0};
  }
  return Plan{64, 64, multiprocessors, 0};
}

}  // namespace jax_convbatch::hopper
