// SPDX-License-Identifier: Apache-2.0
#include "cuda/handlers/cudnn_plan.h"

#include <nanobind/stl/string.h>

#include <stdexcept>
#include <vector>

#include "activation.h"
#include "cuda/common/plan_arguments.h"
#include "cuda/cudnn/library.h"
#include "cuda/cudnn/plans.h"

namespace nb = nanobind;

namespace jax_convbatch {
namespace {

using cudnn_frontend::DataType_t;

DataType_t TypeOf(const std::string& dtype) {
  if (dtype == "bfloat16") return DataType_t::BFLOAT16;
  if (dtype == "float16") return DataType_t::HALF;
  if (dtype == "float32") return DataType_t::FLOAT;
  if (dtype == "float64") return DataType_t::DOUBLE;
  const std::string message =
      "dtype must be 'bfloat16', 'float16', 'float32' or 'float64', and is '" +
      dtype + "'";
  throw nb::value_error(message.c_str());
}

cudnn::Layer LayerOf(const nb::dict& fields) {
  cudnn::Layer layer;
  if (fields.size() == 0) return layer;
  const auto flag = [&](const char* name) {
    return nb::cast<int64_t>(nb::object(fields[name])) != 0;
  };
  layer.scale = flag("scale");
  layer.bias = flag("bias");
  layer.residual = flag("residual");
  layer.save_input = flag("save_input");
  const auto name = nb::cast<std::string>(nb::object(fields["activation"]));
  const auto activation = ParseActivation(name);
  if (!activation) {
    throw nb::value_error(("unknown activation " + name).c_str());
  }
  layer.activation = *activation;
  return layer;
}

}  // namespace

std::string LoadCudnn(const std::string& path) {
  return cudnn::LibraryProblem(path);
}

std::string CudnnVersion() {
  const int64_t version = cudnn::LibraryVersion();
  if (version == 0) return "";
  return std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

nb::object CudnnPlans(const std::string& op, const nb::dict& geometry,
                      const std::string& dtype, const std::string& out_dtype,
                      bool tf32, const nb::dict& layer, int64_t workspace_limit,
                      int most) {
  const cudnn::Problem problem{OpOf<Operation>(op), GeometryOf(geometry),
                               TypeOf(dtype), TypeOf(out_dtype),
                               LayerOf(layer)};
  std::vector<cudnn::Candidate> candidates;
  std::string refusal;
  {
    const nb::gil_scoped_release released;
    try {
      candidates = cudnn::Candidates(problem, tf32, workspace_limit, most);
    } catch (const std::exception& error) {
      refusal = error.what();
    }
  }
  if (candidates.empty()) return nb::str(refusal.c_str());
  nb::list plans;
  for (const cudnn::Candidate& candidate : candidates) {
    nb::dict plan;
    plan["config"] = candidate.config.c_str();
    plan["workspace"] = candidate.workspace;
    plan["compiled"] = candidate.compiled_at_run_time;
    plan["depends_on_batch"] = candidate.depends_on_batch;
    plans.append(plan);
  }
  return plans;
}

}  // namespace jax_convbatch
