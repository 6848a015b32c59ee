// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/plans.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "cuda/common/memo.h"
#include "cuda/cudnn/config.h"
#include "cuda/cudnn/library.h"
#include "cuda/cudnn/preferences.h"
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
    if (!recommended.empty()) {
      const Config& first = recommended.front().config;
      const bool small = IsSmallForWgrad(problem_, first);
      if (small || IsEmptyForWgrad(problem_, first)) {
        const auto all = RecommendedFor(problem_, Heuristics::kAll);
        for (const Recommendation& each : all) {
          if (small && SharesDy(each.config)) Try(each.config, false);
        }
        if (!small) Try(FullestForWgrad(problem_, first, all), false);
      }
    }
    for (const Recommendation& each : recommended) Try(each.config, false);
  }

  // fprop's and dgrad's: a product of matrices, be it the last in the list of
  // the canonical batch.
  void OfProduct() {
    if (!IsHalfProduct(problem_)) return;
    const Problem canonical = problem_.WithBatch(CanonicalBatch(problem_.g));
    for (const Recommendation& each :
         RecommendedFor(canonical, Heuristics::kAll)) {
      if (IsMatmul(each.config) && AddsWhole(canonical, each)) {
        Try(each.config, false);
        return;
      }
    }
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
      if (!changed.Has(CUDNN_KNOB_TYPE_WORKSPACE)) continue;
      changed.knobs[static_cast<int64_t>(CUDNN_KNOB_TYPE_WORKSPACE)] = 1;
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
  if (problem.operation != Operation::kWgrad) search.OfProduct();
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
