// SPDX-License-Identifier: Apache-2.0
// XLA's Initialize of deformable convolutions.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>
#include <string_view>

#include "conv_geometry.h"
#include "cuda/common/memo.h"
#include "cuda/common/status.h"
#include "deform_call.h"

namespace jax_convbatch {

// PrepareOnce on the current device, for calls of these attributes and of
// buffers with these types, the same ones of them empty.
template <typename Tag, typename Prepare>
ffi::Error PrepareDeformOnce(const ConvGeometry& g, const DeformOptions& o,
                             std::string_view config,
                             std::initializer_list<ffi::AnyBuffer> buffers,
                             Prepare&& prepare) {
  int device;
  JCB_RETURN_IF_ERROR(
      ToError(cudaGetDevice(&device), [&] { return Describe("deform", g); }));
  CallKey key;
  key.Add(device).Add(g).Add(o.slice).Add(o.precision).Add(o.offset_groups);
  key.Add(config);
  for (const ffi::AnyBuffer& buffer : buffers) {
    key.Add(buffer.element_type()).Add(buffer.element_count() == 0);
  }
  return PrepareOnce<Tag>(key, prepare);
}

}  // namespace jax_convbatch
