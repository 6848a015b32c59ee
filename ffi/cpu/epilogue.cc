// SPDX-License-Identifier: Apache-2.0
// One pass over c = conv(x, w) for engines without an epilogue:
// z = scale * c + bias + residual, y = activation(z), one of them in place.
#include "epilogue.h"

#include <algorithm>

#include "act_loops.h"
#include "epilogue_call.h"
#include "ffi_checks.h"
#include "half.h"
#include "huge_pages.h"

namespace jax_convbatch {
namespace {

template <typename T>
void Widen(const T* in, int64_t count, Compute<T>* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToCompute(in[i]);
}

template <typename T>
void Narrow(const Compute<T>* in, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = FromCompute<T>(in[i]);
}

template <typename T>
void Epilogue(const EpilogueShape& shape, const EpilogueCall& call) {
  using A = Compute<T>;
  const int64_t width = std::min(shape.K, kTileElements);
  const int64_t tile_rows = kTileElements / width;
  const int64_t tiles = (shape.rows + tile_rows - 1) / tile_rows;
  auto at = [](const void* data, int64_t i) {
    return data == nullptr ? nullptr : static_cast<const T*>(data) + i;
  };
  // A few tiles for a task: handing one to another thread costs as much.
  ParallelFor(tiles, 32, [&](int64_t begin, int64_t end) {
    A z[kTileElements], residual[kTileElements];
    A scale[kTileElements], bias[kTileElements];
    for (int64_t k = 0; k < shape.K; k += width) {
      const int64_t columns = std::min(width, shape.K - k);
      if (call.scale) Widen(at(call.scale, k), columns, scale);
      if (call.bias) Widen(at(call.bias, k), columns, bias);
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t row = tile * tile_rows;
        const int64_t rows = std::min(tile_rows, shape.rows - row);
        const int64_t first = row * shape.K + k, count = rows * columns;
        Widen(at(call.c, first), count, z);
        if (call.residual) Widen(at(call.residual, first), count, residual);
        ScaleAndAdd(call.scale ? scale : nullptr, call.bias ? bias : nullptr,
                    call.residual ? residual : nullptr, z, rows, columns);
        if (call.z) Narrow(z, count, static_cast<T*>(call.z) + first);
        ActivateTile(call.activation, z, z, count);
        Narrow(z, count, static_cast<T*>(call.y) + first);
      }
    }
  });
}

ffi::Error EpilogueImpl(ffi::AnyBuffer c, ffi::RemainingArgs operands,
                        ffi::RemainingRets results, int64_t rows, int64_t K,
                        const EpilogueAttributes& attributes) {
  const EpilogueShape shape{rows, K};
  EpilogueCall call;
  JCB_RETURN_IF_ERROR(
      DecodeEpilogue(attributes, shape, c, operands, results, &call));
  if (shape.size() == 0) return ffi::Error::Success();
  for (size_t i = 0; i < results.size(); ++i) {
    AskForHugePages({**results.get<ffi::AnyBuffer>(i)});
  }
  switch (c.element_type()) {
    case ffi::F64:
      Epilogue<double>(shape, call);
      break;
    case ffi::F16:
      Epilogue<Half>(shape, call);
      break;
    case ffi::BF16:
      Epilogue<BFloat16>(shape, call);
      break;
    default:
      Epilogue<float>(shape, call);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(EpilogueCpu, EpilogueImpl,
                              BindEpilogue(ffi::Ffi::Bind()));

}  // namespace jax_convbatch
