// SPDX-License-Identifier: Apache-2.0
// What the Python module's functions that plan are given, in C++'s types.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "conv_geometry.h"

namespace jax_convbatch {

// Raises KeyError where a field is missing.
inline ConvGeometry GeometryOf(const nanobind::dict& fields) {
  auto number = [&](const std::string& name) {
    return nanobind::cast<int64_t>(nanobind::object(fields[name.c_str()]));
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

// `Op` has kFprop, kDgrad and kWgrad.
template <typename Op>
Op OpOf(const std::string& op) {
  if (op == "fprop") return Op::kFprop;
  if (op == "dgrad") return Op::kDgrad;
  if (op == "wgrad") return Op::kWgrad;
  const std::string message =
      "op must be 'fprop', 'dgrad' or 'wgrad', and is '" + op + "'";
  throw nanobind::value_error(message.c_str());
}

}  // namespace jax_convbatch
