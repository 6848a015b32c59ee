// How fprop and dgrad run.
#include <algorithm>

#include "cuda/hopper/conv.h"
#include "cuda/hopper/conv_parts.h"

namespace jax_convbatch::hopper {
namespace {

// The largest tile that still gives every multiprocessor work.
Plan LargestTile(const Activations& out, int multiprocessors) {
  auto tiles = [&](int m, int n) {
    return (out.n * out.h * out.w + m - 1) / m * ((out.c + n - 1) / n);
  };
  if (out.c > 64) {
    if (tiles(128, 128) >= 2 * multiprocessors) {
      return {128, 128, multiprocessors, 0};
    }
    if (tiles(64, 128) >= multiprocessors / 2) {
      return {64, 128, multiprocessors, 0};
    }
  } else if (tiles(256, 64) >= 4 * multiprocessors) {
    return {256, 64, multiprocessors, 0};
  }
  return {64, 64, multiprocessors, 0};
}

// The same for TF32, fitted to times of 3x3 layers at batches 8 to 1000. Small
// tiles read too much from the L2 to be worth an even share of all
// multiprocessors.
Plan LargestTf32Tile(const Activations& out, bool dgrad, int multiprocessors) {
  auto tiles = [&](int m, int n) {
    return (out.n * out.h * out.w + m - 1) / m * ((out.c + n - 1) / n);
  };
  if (dgrad && out.c > 64 && tiles(128, 128) >= 2 * multiprocessors) {
    return {128, 128, multiprocessors, 0};
  }
  if (4 * tiles(256, 64) >= 3 * multiprocessors) {
    return {256, 64, multiprocessors, 0};
  }
  if (3 * tiles(64, 64) >= multiprocessors) {
    return {64, 64, multiprocessors, 0};
  }
  return {32, 64, multiprocessors, 0};
}

}  // namespace

std::optional<Plan> PlanFprop(const ConvGeometry& g, Type type,
                              int multiprocessors) {
  if (!IsPlain2d(g, type) ||
      !IsWalkable(type, InputOf(g), OutputOf(g), FpropPart(g))) {
    return std::nullopt;
  }
  return type == Type::kTf32
             ? LargestTf32Tile(OutputOf(g), false, multiprocessors)
             : LargestTile(OutputOf(g), multiprocessors);
}

std::optional<Plan> PlanDgrad(const ConvGeometry& g, Type type,
                              int multiprocessors) {
  if (!IsPlain2d(g, type)) return std::nullopt;
  const auto parts = DgradParts(g);
  const bool walkable =
      std::all_of(parts.begin(), parts.end(), [&](const PartAxes& part) {
        return IsWalkable(type, OutputOf(g), InputOf(g), part);
      });
  if (parts.empty() || !walkable) return std::nullopt;
  return type == Type::kTf32
             ? LargestTf32Tile(InputOf(g), true, multiprocessors)
             : LargestTile(InputOf(g), multiprocessors);
}

}  // namespace jax_convbatch::hopper
