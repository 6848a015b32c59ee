#include "cuda/implicit_gemm_plan.h"

#include <cstdint>
#include <optional>
#include <stdexcept>

#include "conv_geometry.h"
#include "cuda/hopper/paths.h"

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

hopper::Type TypeOf(const std::string& dtype) {
  if (dtype == "bfloat16") return hopper::Type::kBf16;
  if (dtype == "float16") return hopper::Type::kF16;
  if (dtype == "float32") return hopper::Type::kTf32;
  const std::string message =
      "dtype must be 'bfloat16', 'float16' or 'float32', and is '" + dtype +
      "'";
  throw nb::value_error(message.c_str());
}

std::optional<hopper::Plan> PlanOf(const std::string& op, const ConvGeometry& g,
                                   hopper::Type type, int multiprocessors) {
  if (op == "fprop")
    return PlanPath(hopper::Op::kFprop, g, type, multiprocessors);
  if (op == "dgrad")
    return PlanPath(hopper::Op::kDgrad, g, type, multiprocessors);
  if (op == "wgrad")
    return PlanPath(hopper::Op::kWgrad, g, type, multiprocessors);
  const std::string message =
      "op must be 'fprop', 'dgrad' or 'wgrad', and is '" + op + "'";
  throw nb::value_error(message.c_str());
}

}  // namespace

nb::object ImplicitGemmPlan(nb::str op, nb::dict geometry, nb::str dtype,
                            int multiprocessors) {
  if (multiprocessors < 1) {
    const std::string message = "multiprocessors must be positive, and is " +
                                std::to_string(multiprocessors);
    throw nb::value_error(message.c_str());
  }
  const auto plan = PlanOf(op.c_str(), GeometryOf(geometry),
                           TypeOf(dtype.c_str()), multiprocessors);
  if (!plan) return nb::none();
  const std::string tile =
      std::to_string(plan->tile_m) + "x" + std::to_string(plan->tile_n);
  nb::dict fields;
  fields["workspace"] = plan->workspace;
  fields["tile"] = tile.c_str();
  fields["preferred"] = plan->preferred;
  fields["blocks"] = plan->blocks;
  constexpr const char* kPaths[] = {"tiles", "gathered tiles", "strips"};
  fields["path"] = kPaths[static_cast<int>(plan->path)];
  return fields;
}

}  // namespace jax_convbatch
