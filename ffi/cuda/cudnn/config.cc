// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn/config.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

namespace jax_convbatch::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Notes = std::vector<fe::NumericalNote_t>;
using Descriptor = fe::detail::backend_descriptor;

// The configuration for a graph, as cuDNN's own object. (The frontend has no
// name for some knobs that heuristics set: its create_execution_plan refuses
// what they recommend.)
fe::ManagedOpaqueDescriptor Describe(const ConvGraph& graph,
                                     const Config& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  Throw(engine.get_status());
  Throw(fe::detail::create_engine(engine, config.engine, graph.operations()));
  std::vector<Descriptor> choices;
  for (const auto& [number, value] : config.knobs) {
    const auto type = static_cast<cudnnBackendKnobType_t>(number);
    Descriptor choice(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    Throw(choice.get_status());
    Throw(fe::detail::set_attribute(choice.get_ptr(),
                                    CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                    CUDNN_TYPE_KNOB_TYPE, 1, &type));
    Throw(fe::detail::set_attribute(choice.get_ptr(),
                                    CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                    CUDNN_TYPE_INT64, 1, &value));
    Throw(fe::detail::finalize(choice.get_ptr()));
    choices.push_back(std::move(choice));
  }
  auto described =
      fe::make_shared_backend_pointer(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  Throw(fe::detail::create_engine_config(described, engine, choices));
  return described;
}

// Engines that never run here.
bool Barred(const Notes& notes, const Problem& problem, bool tf32) {
  const auto has = [&](fe::NumericalNote_t note) {
    return std::find(notes.begin(), notes.end(), note) != notes.end();
  };
  for (const fe::NumericalNote_t note :
       {fe::NumericalNote_t::NONDETERMINISTIC, fe::NumericalNote_t::WINOGRAD,
        fe::NumericalNote_t::WINOGRAD_TILE_4x4,
        fe::NumericalNote_t::WINOGRAD_TILE_6x6,
        fe::NumericalNote_t::WINOGRAD_TILE_13x13, fe::NumericalNote_t::FFT,
        fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION}) {
    if (has(note)) return true;
  }
  if (problem.operand != fe::DataType_t::FLOAT) return false;
  if (has(fe::NumericalNote_t::DOWN_CONVERT_INPUTS)) return true;
  return !tf32 && has(fe::NumericalNote_t::TENSOR_CORE);
}

// The first of A is near the best that the modes list, B is up to twice off (27
// operations, H100); but in f32 of three axes A was (2x12x48x48 of 96 channels
// 329 us, B 126).
fe::HeurMode_t FirstMode(const Problem& problem) {
  const bool deep = problem.operation == Operation::kFprop &&
                    problem.operand == fe::DataType_t::FLOAT &&
                    SpatialAxes(problem.g) == 3;
  return deep ? fe::HeurMode_t::B : fe::HeurMode_t::A;
}

}  // namespace

std::string Config::Name() const {
  std::string name = "eng" + std::to_string(engine);
  for (const auto& [type, value] : knobs) {
    name += "_k" + std::to_string(type) + "=" + std::to_string(value);
  }
  return name;
}

Config Config::Parse(const std::string& name) {
  Config config;
  size_t at = 0;
  const auto refuse = [&] {
    throw std::runtime_error("not a configuration of cuDNN: " + name);
  };
  const auto expect = [&](const std::string& text) {
    if (name.compare(at, text.size(), text) != 0) refuse();
    at += text.size();
  };
  const auto number = [&] {
    size_t length = 0;
    int64_t value = 0;
    try {
      value = std::stoll(name.substr(at), &length);
    } catch (const std::logic_error&) {
      refuse();
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

std::vector<Recommendation> Recommended(const Problem& problem, bool tf32,
                                        Heuristics heuristics,
                                        cudnnHandle_t handle) {
  const GraphPtr graph = MakeGraph(problem, handle);
  std::vector<fe::HeurMode_t> modes = {FirstMode(problem)};
  if (heuristics == Heuristics::kAll) {
    modes = {modes[0], fe::HeurMode_t::A, fe::HeurMode_t::B,
             fe::HeurMode_t::FALLBACK};
  }
  const auto status = graph->create_execution_plans(modes);
  if (status.is_bad()) {
    if (heuristics == Heuristics::kQuick) return {};  // one may have none
    Throw(status);
  }
  const auto& notes = graph->configs().numeric_notes;
  std::vector<Recommendation> found;
  std::set<std::string> names;  // the modes share some
  for (size_t i = 0; i < notes.size(); ++i) {
    if (Barred(notes[i], problem, tf32)) continue;
    std::string name;
    Throw(graph->get_plan_name_at_index(static_cast<int64_t>(i), name));
    if (!names.insert(name).second) continue;
    try {
      Recommendation each{Config::Parse(name), 0};
      auto described = Describe(*graph, each.config);
      Throw(fe::detail::get_workspace_size(described, each.workspace));
      found.push_back(std::move(each));
    } catch (const std::runtime_error&) {
      // Recommended, and refused all the same.
    }
  }
  return found;
}

int64_t Append(ConvGraph& graph, const Config& config) {
  graph.configs().enqueue_engine_configs({Describe(graph, config)});
  Throw(graph.configs().query_properties());
  return graph.get_execution_plan_count() - 1;
}

}  // namespace jax_convbatch::cudnn
