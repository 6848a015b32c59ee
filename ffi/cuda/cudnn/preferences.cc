// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/preferences.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "cuda/cudnn/tile_cost.h"

namespace jax_convbatch::cudnn {
namespace {

namespace fe = cudnn_frontend;

int Attribute(cudaDeviceAttr attribute) {
  int value = 0, device = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
                 cudaDeviceGetAttribute(&value, attribute, device) ==
                     cudaSuccess
             ? value
             : 0;
}

bool IsHopper() { return Attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

int Multiprocessors() { return Attribute(cudaDevAttrMultiProcessorCount); }

bool IsHalf(const Problem& problem) {
  return problem.operand == fe::DataType_t::HALF ||
         problem.operand == fe::DataType_t::BFLOAT16;
}

bool Is(int64_t engine, std::initializer_list<int64_t> list) {
  return std::find(list.begin(), list.end(), engine) != list.end();
}

// Whether its kernels add in the same order with tiles of any size: those of
// TMA and wgmma, and two of mma.sync.
bool HasFreeTiles(const Config& config) {
  return config.Has(CUDNN_KNOB_TYPE_TILE_CGA_M) || Is(config.engine, {22, 40});
}

// What of wgrad's tiles of 64 columns lies within dw. Its columns, taps by
// inputs, come in whole clusters.
double FilledByWgrad(const Problem& problem, const Config& config) {
  constexpr int64_t kTileColumns = 64;
  const ConvGeometry& g = problem.g;
  const int64_t step =
      kTileColumns * config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, 1);
  const int64_t columns = g.taps() * g.C;
  return static_cast<double>(columns) /
         static_cast<double>((columns + step - 1) / step * step);
}

std::string NameWithout(Config config,
                        std::initializer_list<cudnnBackendKnobType_t> knobs) {
  for (const auto knob : knobs) {
    config.knobs.erase(static_cast<int64_t>(knob));
  }
  return config.Name();
}

}  // namespace

bool IsMatmul(const Config& config) { return Is(config.engine, {58, 63}); }

bool IsHalfProduct(const Problem& problem) {
  const ConvGeometry& g = problem.g;
  return IsHopper() && IsHalf(problem) && problem.layer.empty() &&
         g.groups == 1 && g.taps() == 1 &&
         g.output_pixels() == g.input_pixels();
}

bool SameBits(const Config& a, const Config& b) {
  if (a.Name() == b.Name()) return true;
  if (!IsHopper() || !HasFreeTiles(a)) return false;
  const auto order = [](const Config& config) {
    return NameWithout(
        config, {CUDNN_KNOB_TYPE_TILE_SIZE, CUDNN_KNOB_TYPE_WORKSPACE,
                 CUDNN_KNOB_TYPE_TILE_CGA_M, CUDNN_KNOB_TYPE_TILE_CGA_N});
  };
  return order(a) == order(b);
}

size_t Cheapest(const Problem& problem,
                const std::vector<Recommendation>& same) {
  constexpr double kCheaper = 1.04;
  const bool fprop = problem.operation == Operation::kFprop;
  const ConvGeometry& g = problem.g;
  const Gemm gemm =
      fprop ? Gemm{g.y_size() / g.K, g.K} : Gemm{g.x_size() / g.C, g.C};
  const int multiprocessors = Multiprocessors();
  const auto cost = [&](const Recommendation& each) {
    return TileCost(gemm, each.config, multiprocessors);
  };
  const auto first = cost(same.front());
  if (!first || g.groups > 1) return 0;
  size_t best = 0;
  double least = *first / kCheaper;
  for (size_t i = 1; i < same.size(); ++i) {
    const auto other = cost(same[i]);
    if (other && *other < least) {
      best = i;
      least = *other;
    }
  }
  return best;
}

bool HasOthers(const Problem& problem, const Config& config) {
  const ConvGeometry& g = problem.g;
  const bool half = IsHalf(problem);
  if (!IsHopper() || g.groups > 1) return false;
  if (!half && (std::min(g.C, g.K) < 32 || g.C % 4 != 0 || g.K % 4 != 0)) {
    return false;
  }
  return HasFreeTiles(config) || (half && IsMatmul(config));
}

bool IsSlow(const Problem& problem, const Config& config) {
  const ConvGeometry& g = problem.g;
  if (g.groups > 1) return false;
  constexpr double kFewProducts = 1e7;
  constexpr int64_t kFewPixels = 1 << 14, kFewOutputs = 16;
  const double products = 2.0 * static_cast<double>(g.y_size()) *
                          static_cast<double>(g.column_size());
  if (config.engine == 0) return products > kFewProducts;
  return config.engine == 28 && problem.operation == Operation::kFprop &&
         g.N * g.output_pixels() >= kFewPixels && g.K >= kFewOutputs;
}

bool AddsWhole(const Problem& problem, const Recommendation& found) {
  constexpr int64_t kCountersAlone = 4096;
  const Config& config = found.config;
  if (config.Has(CUDNN_KNOB_TYPE_SPLIT_K_SLC)) return false;
  if (IsMatmul(config)) return IsHalf(problem) && IsHopper();
  if (found.workspace <= kCountersAlone) return true;
  // dgrad's 25 has other bits in other batches.
  if (problem.operation == Operation::kDgrad && config.engine == 25) {
    return false;
  }
  return config.Knob(CUDNN_KNOB_TYPE_WORKSPACE, 1) == 1;
}

bool IsSmallForWgrad(const Problem& problem, const Config& config) {
  const ConvGeometry& g = problem.g;
  return IsHopper() && IsHalf(problem) && g.groups == 1 && g.taps() > 1 &&
         std::min(g.C, g.K) >= 96 &&
         config.Knob(CUDNN_KNOB_TYPE_TILE_SIZE, -1) == 5 &&
         config.Has(CUDNN_KNOB_TYPE_TILE_CGA_M);
}

bool IsLastForWgrad(const Problem& problem, const Config& config) {
  const int64_t cluster = config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_M, 1) *
                          config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, 1);
  return IsSlow(problem, config) || cluster > kMostOfCluster;
}

bool SharesDy(const Config& config) {
  return config.Knob(CUDNN_KNOB_TYPE_TILE_SIZE, -1) == 1 &&
         config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_M, -1) == 1 &&
         config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, -1) == 8;
}

bool IsEmptyForWgrad(const Problem& problem, const Config& config) {
  constexpr double kFilled = 0.85;
  constexpr int64_t k128x64 = 1, k64x64 = 5;  // sizes
  const int64_t size = config.Knob(CUDNN_KNOB_TYPE_TILE_SIZE, -1);
  const int64_t cluster = config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, 1);
  return IsHopper() && IsHalf(problem) && problem.g.groups == 1 &&
         Is(size, {k128x64, k64x64}) && cluster % 2 == 0 &&
         FilledByWgrad(problem, config) < kFilled;
}

const Config& FullestForWgrad(const Problem& problem, const Config& first,
                              const std::vector<Recommendation>& others) {
  constexpr auto kCluster = CUDNN_KNOB_TYPE_TILE_CGA_N;
  const auto rest = [](const Config& config) {
    return NameWithout(config, {kCluster});
  };
  for (const Recommendation& each : others) {
    const Config& other = each.config;
    if (2 * other.Knob(kCluster, 1) == first.Knob(kCluster, 1) &&
        rest(other) == rest(first) &&
        FilledByWgrad(problem, other) > FilledByWgrad(problem, first)) {
      return other;
    }
  }
  return first;
}

}  // namespace jax_convbatch::cudnn
