#include "cuda/implicit_gemm_plan.h"

#include <cstdint>
#include <optional>
#include <stdexcept>

#include "conv_geometry.h"
#include "cuda/hopper/conv.h"

namespace nb = nanobind;

namespace jax_convbatch {
namespace {

ConvGeometry GeometryOf(const nb::dict& fields) {
  auto number = [&](const std::string& name) {
    return nb::cast<int64_t>(nb::object(fields[name.c_str()]));
  };
  auto axes = [&](const std::string& name) {
    return Axes{number(name + "_d"), number(name + "_h"), number(name + "_w")};
  };
  return {number("N"),
          number("D"),
          number("H"),
          number("W"),
          number("C"),
          number("K"),
          number("T"),
          number("R"),
          number("S"),
          number("O"),
          number("P"),
          number("Q"),
          number("groups"),
          axes("stride"),
          axes("pad"),
          axes("input_dilation"),
          axes("filter_dilation")};
}

std::optional<hopper::Plan> PlanOf(const std::string& op, const ConvGeometry& g,
                                   int multiprocessors) {
  if (op == "fprop") return hopper::PlanFprop(g, multiprocessors);
  if (op == "dgrad") return hopper::PlanDgrad(g, multiprocessors);
  if (op == "wgrad") return hopper::PlanWgrad(g, multiprocessors);
  const std::string message =
      "op must be 'fprop', 'dgrad' or 'wgrad', and is '" + op + "'";
  throw nb::value_error(message.c_str());
}

}  // namespace

nb::object ImplicitGemmPlan(nb::str op, nb::dict geometry,
                            int multiprocessors) {
  if (multiprocessors < 1) {
    const std::string message = "multiprocessors must be positive, and is " +
                                std::to_string(multiprocessors);
    throw nb::value_error(message.c_str());
  }
  const auto plan = PlanOf(op.c_str(), GeometryOf(geometry), multiprocessors);
  if (!plan) return nb::none();
  const std::string tile =
      std::to_string(plan->tile_m) + "x" + std::to_string(plan->tile_n);
  nb::dict fields;
  fields["workspace"] = plan->workspace;
  fields["tile"] = tile.c_str();
  fields["blocks"] = plan->blocks;
  return fields;
}

}  // namespace jax_convbatch
