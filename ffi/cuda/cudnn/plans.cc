// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/plans.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <stdexcept>

#include "cuda/common/memo.h"
#include "cuda/cudnn/config.h"
#include "cuda/cudnn/library.h"
#include "cuda/cudnn/tile_cost.h"
#include "ffi_checks.h"

namespace jax_convbatch::cudnn {
namespace {

namespace fe = cudnn_frontend;

BuiltPlan Build(const Problem& problem, const Config& config,
                cudnnHandle_t handle) {
  const GraphPtr graph = MakeGraph(problem, handle);
  BuiltPlan plan{graph, Append(*graph, config), 0, false};
  Throw(graph->build_plan_at_index(plan.index));
  Throw(graph->get_workspace_size_plan_at_index(plan.index, plan.workspace));
  plan.workspace = Workspace::Aligned(plan.workspace);
  std::vector<fe::BehaviorNote_t> notes;
  Throw(graph->get_behavior_notes_for_plan_at_index(plan.index, notes));
  plan.compiled_at_run_time =
      std::find(notes.begin(), notes.end(),
                fe::BehaviorNote_t::RUNTIME_COMPILATION) != notes.end();
  return plan;
}

CallKey KeyOf(const Problem& problem, const std::string& config, int device) {
  const Layer& layer = problem.layer;
  CallKey key;
  key.Add(device).Add(problem.operation).Add(problem.g);
  key.Add(problem.operand).Add(problem.result).Add(layer.activation);
  key.Add(layer.scale).Add(layer.bias).Add(layer.residual);
  return key.Add(layer.save_input).Add(std::string_view(config));
}

int CurrentDevice() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) {
    throw std::runtime_error("CUDA has no current device");
  }
  return device;
}

int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  const int device = CurrentDevice();
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess
             ? value
             : 0;
}

bool IsHopper() { return Attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

int Multiprocessors() { return Attribute(cudaDevAttrMultiProcessorCount); }

constexpr auto kWorkspaceKnob = static_cast<int64_t>(CUDNN_KNOB_TYPE_WORKSPACE);

bool IsHalf(const Problem& problem) {
  return problem.operand == fe::DataType_t::HALF ||
         problem.operand == fe::DataType_t::BFLOAT16;
}

bool Is(int64_t engine, std::initializer_list<int64_t> list) {
  return std::find(list.begin(), list.end(), engine) != list.end();
}

// Engines of fprop and dgrad by the numbers that cuDNN 9 gives them. What is
// said of them was measured on an H100 (tests/test_cudnn_bits.py).

// A 1x1 filter as a product of matrices: the kernel is chosen inside, by the
// number of pixels. For 16 bits all of them add in the same order.
bool IsMatmul(const Config& config) { return Is(config.engine, {58, 63}); }

// Whether its kernels add in the same order with tiles of any size: those of
// TMA and wgmma, and two of mma.sync.
bool HasFreeTiles(const Config& config) {
  return config.Has(CUDNN_KNOB_TYPE_TILE_CGA_M) || Is(config.engine, {22, 40});
}

// Whether two configurations add the products of a sum in the same order. On
// Hopper tiles of other sizes and clusters of other shapes do, as long as a
// step of the reduction is as long; elsewhere nobody has looked.
bool SameBits(const Config& a, const Config& b) {
  if (a.Name() == b.Name()) return true;
  if (!IsHopper() || !HasFreeTiles(a)) return false;
  const auto order = [](Config config) {
    for (const auto knob :
         {CUDNN_KNOB_TYPE_TILE_SIZE, CUDNN_KNOB_TYPE_WORKSPACE,
          CUDNN_KNOB_TYPE_TILE_CGA_M, CUDNN_KNOB_TYPE_TILE_CGA_N}) {
      config.knobs.erase(static_cast<int64_t>(knob));
    }
    return config.Name();
  };
  return order(a) == order(b);
}

// Which of some configurations of the same bits goes first: the heuristics'
// first, unless another is cheaper. 17x90x80 of 192 channels in f32 takes them
// 875 us by tiles of 128 columns, 628 by those of 192; 3x128x320 of 96 683 by
// those of 32, 230 by those of 128 (3x3x3; H100).
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

// Whether it has kernels of the same bits for batches of every size, where
// those without any are no faster: of 16 bits or of 32 and more channels.
bool HasOthers(const Problem& problem, const Config& config) {
  const ConvGeometry& g = problem.g;
  const bool half = IsHalf(problem);
  if (!IsHopper() || g.groups > 1) return false;
  if (!half && (std::min(g.C, g.K) < 32 || g.C % 4 != 0 || g.K % 4 != 0)) {
    return false;
  }
  return HasFreeTiles(config) || (half && IsMatmul(config));
}

// Whether it is an engine that is recommended for few channels, and is slow for
// more than a few products. Engine 0, without tensor cores and shared memory,
// does 0.6 TFLOP/s where others do 10 and more. fprop's 28, true f32 in shared
// memory, takes up to twice as long as the kernels of TF32 for few channels
// (8x240000 1->32, 7 taps: 350 us, 176; H100), which copy x and have three
// launches, so that it is ahead for small images.
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

// Whether no sum is cut, since where it is depends on the number of all tiles,
// and so on the batch. Engines with a knob for it may keep parts of sums in the
// workspace (stream-K) unless it is 1; up to 4 KiB are counters. What others
// have there is x, w or y in another layout.
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

// Whether wgrad's tiles of TMA kernels are 64x64 where there is more of both
// channels: the heuristics take those up to 1.4 times as long as tiles of
// 128x64 in clusters of 1x8 (12x48x48 96->192 3x3x3 s2 in bf16, batch 2: 33
// us, 23; H100).
bool IsSmallForWgrad(const Problem& problem, const Config& config) {
  const ConvGeometry& g = problem.g;
  return IsHopper() && IsHalf(problem) && g.groups == 1 && g.taps() > 1 &&
         std::min(g.C, g.K) >= 96 &&
         config.Knob(CUDNN_KNOB_TYPE_TILE_SIZE, -1) == 5 &&
         config.Has(CUDNN_KNOB_TYPE_TILE_CGA_M);
}

// Whether wgrad takes it after all others: an engine that is slow, or clusters
// of sixteen tiles, for which a GPU has little room (65536 steps of 1152
// channels, 5 taps, in bf16, batch 2: 3429 us, others 2686 and more; H200).
bool IsLastForWgrad(const Problem& problem, const Config& config) {
  const int64_t cluster = config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_M, 1) *
                          config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, 1);
  return IsSlow(problem, config) || cluster > kMostOfCluster;
}

// Of wgrad, tiles of 128x64 in clusters of 1x8.
bool SharesDy(const Config& config) {
  return config.Knob(CUDNN_KNOB_TYPE_TILE_SIZE, -1) == 1 &&
         config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_M, -1) == 1 &&
         config.Knob(CUDNN_KNOB_TYPE_TILE_CGA_N, -1) == 8;
}

// What the search has come to.
class Search {
 public:
  Search(const Problem& problem, bool tf32, int64_t workspace_limit, int most)
      : problem_(problem),
        tf32_(tf32),
        workspace_limit_(workspace_limit),
        most_(most) {}

  // wgrad's: a sum over the batch is another one for each batch.
  void OfBatch(Heuristics heuristics) {
    auto recommended = RecommendedFor(problem_, heuristics);
    std::stable_partition(recommended.begin(), recommended.end(),
                          [&](const auto& each) {
                            return !IsLastForWgrad(problem_, each.config);
                          });
    if (!recommended.empty() &&
        IsSmallForWgrad(problem_, recommended.front().config)) {
      for (const Recommendation& each :
           RecommendedFor(problem_, Heuristics::kAll)) {
        if (SharesDy(each.config)) Try(each.config, false);
      }
    }
    for (const Recommendation& each : recommended) Try(each.config, false);
  }

  // fprop's and dgrad's: those with the bits that the canonical batch has.
  void OfSample(Heuristics heuristics) {
    const Problem canonical = problem_.WithBatch(CanonicalBatch(problem_.g));
    const auto recommended = RecommendedFor(canonical, heuristics);
    auto first = FirstWhole(canonical, recommended);
    if (!first && heuristics == Heuristics::kAll) {
      first = FirstChanged(canonical, recommended);
    }
    if (!first) return;
    std::vector<Recommendation> same;
    for (Recommendation& each : RecommendedFor(problem_, heuristics)) {
      if (SameBits(each.config, *first) && AddsWhole(problem_, each)) {
        same.push_back(std::move(each));
      }
    }
    if (!same.empty()) Try(same[Cheapest(problem_, same)].config, false);
    for (const Recommendation& each : same) Try(each.config, false);
    Try(*first, false);
  }

  // Whatever runs a batch.
  void OfAny() {
    for (const Recommendation& each :
         RecommendedFor(problem_, Heuristics::kAll)) {
      Try(each.config, true);
    }
  }

  bool empty() const { return found_.empty(); }
  bool full() const { return static_cast<int>(found_.size()) == most_; }

  // Throws std::runtime_error where nothing was found.
  const std::vector<Candidate>& found() const {
    if (found_.empty()) throw std::runtime_error(refusal_);
    return found_;
  }

 private:
  std::vector<Recommendation> RecommendedFor(const Problem& problem,
                                             Heuristics heuristics) const {
    const DeviceHandle handle;
    return Recommended(problem, tf32_, heuristics, handle.get());
  }

  // The first that adds sums whole.
  static std::optional<Config> FirstWhole(
      const Problem& problem, const std::vector<Recommendation>& recommended) {
    const auto first = [&](auto&& fits) -> std::optional<Config> {
      for (const Recommendation& each : recommended) {
        if (AddsWhole(problem, each) && fits(each.config)) return each.config;
      }
      return std::nullopt;
    };
    // One that has kernels for other batches goes before one that has not.
    auto found =
        first([&](const Config& config) { return HasOthers(problem, config); });
    if (!found) {
      found =
          first([&](const Config& config) { return !IsSlow(problem, config); });
    }
    return found ? found : first([](const Config&) { return true; });
  }

  // The first that does once it may keep nothing in the workspace. Only where
  // no other is left: changed tiles took twice as long as others (f32, 2x90x160
  // of 384 channels; H100).
  static std::optional<Config> FirstChanged(
      const Problem& problem, const std::vector<Recommendation>& recommended) {
    const DeviceHandle handle;
    for (const Recommendation& each : recommended) {
      Config changed = each.config;
      if (changed.knobs.count(kWorkspaceKnob) == 0) continue;
      changed.knobs[kWorkspaceKnob] = 1;
      try {
        Append(*MakeGraph(problem, handle.get()), changed);
        return changed;
      } catch (const std::runtime_error&) {
        // The engine has no such tile.
      }
    }
    return std::nullopt;
  }

  void Try(const Config& config, bool depends_on_batch) {
    if (full()) return;
    const std::string name = config.Name();
    for (const Candidate& other : found_) {
      if (other.config == name) return;
    }
    try {
      const auto plan = FindPlan(problem_, name);
      if (plan->workspace > workspace_limit_) {
        refusal_ = "its workspace is over the limit: " +
                   std::to_string(plan->workspace) + " bytes";
        return;
      }
      found_.push_back({name, plan->workspace, plan->compiled_at_run_time,
                        depends_on_batch});
    } catch (const std::runtime_error& error) {
      refusal_ = error.what();
    }
  }

  const Problem& problem_;
  const bool tf32_;
  const int64_t workspace_limit_;
  const int most_;
  std::vector<Candidate> found_;
  std::string refusal_ = "cuDNN has no deterministic engine for it";
};

}  // namespace

std::vector<Candidate> Candidates(const Problem& problem, bool tf32,
                                  int64_t workspace_limit, int most) {
  if (const auto reason = CannotExpress(problem)) {
    throw std::runtime_error(*reason);
  }
  Search search(problem, tf32, workspace_limit, most);
  for (const Heuristics each : {Heuristics::kQuick, Heuristics::kAll}) {
    if (search.full()) break;
    if (problem.operation == Operation::kWgrad) {
      search.OfBatch(each);
    } else {
      search.OfSample(each);
    }
  }
  if (search.empty()) search.OfAny();
  return search.found();
}

std::shared_ptr<const BuiltPlan> FindPlan(const Problem& problem,
                                          const std::string& config) {
  const CallKey key = KeyOf(problem, config, CurrentDevice());
  auto& memo = ProcessMemo<std::shared_ptr<const BuiltPlan>>();
  return memo.Get(key, [&] {
    const DeviceHandle handle;
    return std::make_shared<const BuiltPlan>(
        Build(problem, Config::Parse(config), handle.get()));
  });
}

}  // namespace jax_convbatch::cudnn
