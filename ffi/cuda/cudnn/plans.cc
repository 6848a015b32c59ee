#include "cuda/cudnn/plans.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "cuda/cudnn/library.h"
#include "cuda/memo.h"
#include "ffi_checks.h"

namespace jax_convbatch::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Notes = std::vector<fe::NumericalNote_t>;

// An engine and its knobs by number, in order.
struct Config {
  int64_t engine;
  std::map<int64_t, int64_t> knobs;

  int64_t knob(fe::KnobType_t type) const {
    const auto it = knobs.find(static_cast<int64_t>(type));
    return it == knobs.end() ? 0 : it->second;
  }

  // "eng4_k2=1_k14=2".
  std::string Name() const {
    std::string name = "eng" + std::to_string(engine);
    for (const auto& [type, value] : knobs) {
      name += "_k" + std::to_string(type) + "=" + std::to_string(value);
    }
    return name;
  }

  static Config Parse(const std::string& name) {
    Config config;
    size_t at = 0;
    auto expect = [&](const std::string& text) {
      if (name.compare(at, text.size(), text) != 0) {
        throw std::runtime_error("not a configuration of cuDNN: " + name);
      }
      at += text.size();
    };
    auto number = [&] {
      size_t length = 0;
      int64_t value = 0;
      try {
        value = std::stoll(name.substr(at), &length);
      } catch (const std::logic_error&) {
        throw std::runtime_error("not a configuration of cuDNN: " + name);
      }
      at += length;
      return value;
    };
    expect("eng");
    config.engine = number();
    while (at < name.size()) {
      expect("_k");
      const int64_t type = number();
      expect("=");
      config.knobs[type] = number();
    }
    return config;
  }
};

void Throw(fe::error_t error) {
  if (error.is_bad()) throw std::runtime_error(error.get_message());
}

Config ConfigAt(const GraphPtr& graph, int64_t index) {
  Config config;
  std::unordered_map<fe::KnobType_t, int64_t> knobs;
  Throw(graph->get_engine_and_knobs_at_index(index, config.engine, knobs));
  for (const auto& [type, value] : knobs) {
    config.knobs[static_cast<int64_t>(type)] = value;
  }
  return config;
}

bool Has(const Notes& notes, fe::NumericalNote_t note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

// Engines that never run here.
bool Barred(const Notes& notes, const Problem& problem, bool tf32) {
  for (const fe::NumericalNote_t note :
       {fe::NumericalNote_t::NONDETERMINISTIC, fe::NumericalNote_t::WINOGRAD,
        fe::NumericalNote_t::WINOGRAD_TILE_4x4,
        fe::NumericalNote_t::WINOGRAD_TILE_6x6,
        fe::NumericalNote_t::WINOGRAD_TILE_13x13, fe::NumericalNote_t::FFT,
        fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION}) {
    if (Has(notes, note)) return true;
  }
  if (problem.operand != fe::DataType_t::FLOAT) return false;
  if (Has(notes, fe::NumericalNote_t::DOWN_CONVERT_INPUTS)) return true;
  return !tf32 && Has(notes, fe::NumericalNote_t::TENSOR_CORE);
}

// Whether two configurations add the products of a sum in the same order. On
// Hopper tiles of other sizes and clusters of other shapes do, as long as a
// step of the reduction is as long (measured, tests/test_cudnn_bits.py);
// elsewhere nobody has looked.
bool SameBits(const Config& a, const Config& b, bool hopper) {
  if (!hopper) return a.Name() == b.Name();
  const auto rest = [](Config config) {
    for (const fe::KnobType_t free :
         {fe::KnobType_t::TILE_SIZE, fe::KnobType_t::WORKSPACE,
          fe::KnobType_t::TILE_CGA_M, fe::KnobType_t::TILE_CGA_N}) {
      config.knobs.erase(static_cast<int64_t>(free));
    }
    return config.Name();
  };
  return rest(a) == rest(b);
}

// A plan with no more workspace keeps counters there, and no part of a sum:
// tiles that share one (stream-K) are cut where the number of all tiles says.
constexpr int64_t kCountersAlone = 4096;

// The heuristics' configurations for a problem, best first.
std::vector<Config> Recommended(const Problem& problem, bool tf32,
                                cudnnHandle_t handle) {
  const GraphPtr graph = MakeGraph(problem, handle);
  // A was ahead of B for images (ResNet-50's at batch 8 by 5%), and is up to
  // three times off for three axes (f32, 48x48x48 of 96 channels; H100).
  std::vector<fe::HeurMode_t> modes = {fe::HeurMode_t::A, fe::HeurMode_t::B,
                                       fe::HeurMode_t::FALLBACK};
  if (SpatialAxes(problem.g) == 3) std::swap(modes[0], modes[1]);
  Throw(graph->create_execution_plans(modes));
  const auto& notes = graph->configs().numeric_notes;
  std::vector<Config> found;
  std::set<std::string> names;  // the modes share some
  for (size_t i = 0; i < notes.size(); ++i) {
    if (Barred(notes[i], problem, tf32)) continue;
    Config config = ConfigAt(graph, static_cast<int64_t>(i));
    if (names.insert(config.Name()).second) found.push_back(std::move(config));
  }
  return found;
}

BuiltPlan Build(const Problem& problem, const Config& config,
                cudnnHandle_t handle) {
  const GraphPtr graph = MakeGraph(problem, handle);
  std::unordered_map<fe::KnobType_t, int64_t> knobs;
  for (const auto& [type, value] : config.knobs) {
    knobs[static_cast<fe::KnobType_t>(type)] = value;
  }
  Throw(graph->create_execution_plan(config.engine, knobs));
  Throw(graph->build_plan_at_index(0));
  BuiltPlan plan{graph, 0, false};
  Throw(graph->get_workspace_size_plan_at_index(0, plan.workspace));
  plan.workspace = Workspace::Aligned(plan.workspace);
  std::vector<fe::BehaviorNote_t> notes;
  Throw(graph->get_behavior_notes_for_plan_at_index(0, notes));
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
  void OfBatch() {
    for (const Config& config : RecommendedFor(problem_)) Try(config, false);
  }

  // fprop's and dgrad's: those with the bits that the canonical batch has.
  void OfSample() {
    const Problem canonical = problem_.WithBatch(CanonicalBatch(problem_.g));
    const std::vector<Config> recommended = RecommendedFor(canonical);
    std::optional<Config> first;
    for (const bool changed : {false, true}) {
      for (size_t i = 0; i < recommended.size() && !first; ++i) {
        first = Whole(canonical, recommended[i], changed);
      }
    }
    if (first && IsHopper()) {
      const std::vector<Config> own = RecommendedFor(problem_);
      for (const bool changed : {false, true}) {
        for (const Config& config : own) {
          if (static_cast<int>(found_.size()) == most_) return;
          if (!SameBits(config, *first, true)) continue;
          const auto whole = Whole(problem_, config, changed);
          if (whole) Try(*whole, false);
        }
      }
    }
    if (first && AddsWhole(problem_, *first)) Try(*first, false);
    if (!found_.empty()) return;
    for (const Config& config : recommended) Try(config, true);
    for (const Config& config : RecommendedFor(problem_)) Try(config, true);
  }

  // Throws std::runtime_error where nothing was found.
  const std::vector<Candidate>& found() const {
    if (found_.empty()) throw std::runtime_error(refusal_);
    return found_;
  }

 private:
  std::vector<Config> RecommendedFor(const Problem& problem) const {
    const DeviceHandle handle;
    return Recommended(problem, tf32_, handle.get());
  }

  static bool IsHopper() {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                  device) == cudaSuccess &&
           major == 9;
  }

  // The configuration, or if it is to be `changed` the one that differs in what
  // it may keep in the workspace alone, if it adds sums whole. What the
  // heuristics recommend as it is goes before: changed tiles took twice as long
  // as others (f32, 2x90x160 of 384 channels; H100).
  std::optional<Config> Whole(const Problem& problem, const Config& config,
                              bool changed) {
    if (!changed) {
      if (AddsWhole(problem, config)) return config;
      return std::nullopt;
    }
    constexpr auto kKnob = static_cast<int64_t>(fe::KnobType_t::WORKSPACE);
    if (config.knobs.count(kKnob) == 0 || config.knobs.at(kKnob) == 1) {
      return std::nullopt;
    }
    Config other = config;
    other.knobs[kKnob] = 1;
    if (AddsWhole(problem, other)) return other;
    return std::nullopt;
  }

  bool AddsWhole(const Problem& problem, const Config& config) {
    try {
      return FindPlan(problem, config.Name())->workspace <= kCountersAlone;
    } catch (const std::runtime_error& error) {
      refusal_ = error.what();
      return false;
    }
  }

  void Try(const Config& config, bool depends_on_batch) {
    if (static_cast<int>(found_.size()) == most_) return;
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
  if (problem.operation == Operation::kWgrad) {
    search.OfBatch();
  } else {
    search.OfSample();
  }
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
