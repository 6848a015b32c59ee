// SPDX-License-Identifier: Apache-2.0
// The bias gradient: db[b, k] is the sum of dy[b, row, k] over the rows, in
// chunks whose borders the caller chose. Which thread adds what, and in which
// order, follows from the sizes alone.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <sstream>

#include "cuda/common/dtypes.h"
#include "cuda/common/status.h"
#include "cuda/handlers/handlers.h"
#include "cuda/reductions/bias_grad.h"
#include "cuda/reductions/row_sums.cuh"
#include "ffi_checks.h"

namespace jax_convbatch {

std::string SumSizes::Describe(const char* op) const {
  std::ostringstream out;
  out << op << " of dy[" << B << ", " << rows << ", " << K << "] in chunks of "
      << chunk_rows << " rows";
  return out.str();
}

ffi::Error CheckSums(const char* op, const SumSizes& s,
                     const ffi::AnyBuffer& dy, const ffi::AnyBuffer* db,
                     const ffi::AnyBuffer& workspace) {
  const ffi::DataType dtype = dy.element_type();
  const int64_t elements = s.B * s.rows * s.K;
  if (!SupportedDtype(dtype) || s.chunk_rows < 1 || s.chunk_rows % 8 != 0 ||
      static_cast<int64_t>(dy.element_count()) != elements ||
      (db != nullptr &&
       (db->element_type() != dtype ||
        static_cast<int64_t>(db->element_count()) != s.B * s.K))) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtypes or sizes in " + s.Describe(op));
  }
  const int64_t needed = DispatchDtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    return PartialBytes<T>(s.B, s.rows, s.K, s.chunk_rows);
  });
  if (db != nullptr && elements > 0 &&
      static_cast<int64_t>(workspace.size_bytes()) < needed) {
    return ffi::Error::Internal(
        "jax_convbatch: the workspace is too small in " + s.Describe(op));
  }
  return ffi::Error::Success();
}

namespace {

template <typename T>
cudaError_t Bgrad(cudaStream_t stream, const SumSizes& s, const void* dy,
                  void* partials, void* db) {
  return ForVector<T>(s.B, s.rows, s.K, [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    const PlainSource<T, kVector> source{static_cast<const T*>(dy)};
    return SumSource<T, kVector>(stream, s.B, s.rows, s.K, s.chunk_rows, source,
                                 partials, db);
  });
}

ffi::Error BgradExecute(cudaStream_t stream, ffi::AnyBuffer dy,
                        ffi::Result<ffi::AnyBuffer> db,
                        ffi::Result<ffi::AnyBuffer> workspace, int64_t B,
                        int64_t rows, int64_t K, int64_t chunk_rows) {
  const SumSizes s{B, rows, K, chunk_rows};
  auto where = [&] { return s.Describe("bgrad"); };
  JCB_RETURN_IF_ERROR(CheckSums("bgrad", s, dy, &*db, *workspace));
  if (db->element_count() == 0) return ffi::Error::Success();
  if (rows == 0) {
    return ToError(
        cudaMemsetAsync(db->untyped_data(), 0, db->size_bytes(), stream),
        where);
  }
  return ToError(DispatchDtype(dy.element_type(),
                               [&](auto tag) {
                                 using T = typename decltype(tag)::type;
                                 return Bgrad<T>(stream, s, dy.untyped_data(),
                                                 workspace->untyped_data(),
                                                 db->untyped_data());
                               }),
                 where);
}

// db is wanted where there is a third result.
ffi::Error ActBgradExecute(cudaStream_t stream, ffi::AnyBuffer saved,
                           ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dz,
                           ffi::Result<ffi::AnyBuffer> workspace,
                           ffi::RemainingRets rest, std::string_view name,
                           int64_t B, int64_t rows, int64_t K,
                           int64_t chunk_rows) {
  const SumSizes s{B, rows, K, chunk_rows};
  auto where = [&] { return s.Describe("act_bgrad"); };
  const auto activation = ParseActivation(name);
  ffi::AnyBuffer* db = nullptr;
  std::optional<ffi::Result<ffi::AnyBuffer>> wanted;
  if (rest.size() == 1) {
    auto third = rest.get<ffi::AnyBuffer>(0);
    if (!third.has_value()) return third.error();
    wanted = third.value();
    db = &**wanted;
  }
  JCB_RETURN_IF_ERROR(CheckSums("act_bgrad", s, dy, db, *workspace));
  const ffi::DataType dtype = dy.element_type();
  // As much as the kernel for bits of y takes.
  const bool bitmask = saved.element_type() == ffi::U8 && dtype != ffi::F64 &&
                       K % 8 == 0 && activation == Activation::kRelu;
  if (!activation || rest.size() > 1 ||
      (saved.element_type() != dtype && !bitmask) ||
      dz->element_type() != dtype ||
      saved.element_count() != dy.element_count() / (bitmask ? 8 : 1) ||
      dz->element_count() != dy.element_count()) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtypes, sizes or activation in " + where());
  }
  if (dy.element_count() == 0) {
    if (db == nullptr || db->element_count() == 0) {
      return ffi::Error::Success();
    }
    return ToError(
        cudaMemsetAsync(db->untyped_data(), 0, db->size_bytes(), stream),
        where);
  }
  const ActGradCall call{s,
                         *activation,
                         bitmask,
                         saved.untyped_data(),
                         dy.untyped_data(),
                         dz->untyped_data(),
                         workspace->untyped_data(),
                         db == nullptr ? nullptr : db->untyped_data()};
  return ToError(DispatchDtype(dtype,
                               [&](auto tag) {
                                 using T = typename decltype(tag)::type;
                                 return ActGrad<T>(call, stream);
                               }),
                 where);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaBgradExecute, BgradExecute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()  // dy
                                  .Ret<ffi::AnyBuffer>()  // db
                                  .Ret<ffi::AnyBuffer>()  // workspace
                                  .Attr<int64_t>("B")
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("K")
                                  .Attr<int64_t>("chunk_rows"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(CudaActBgradExecute, ActBgradExecute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()  // y, z or bitmask
                                  .Arg<ffi::AnyBuffer>()  // dy
                                  .Ret<ffi::AnyBuffer>()  // dz
                                  .Ret<ffi::AnyBuffer>()  // workspace
                                  .RemainingRets()        // db, where wanted
                                  .Attr<std::string_view>("activation")
                                  .Attr<int64_t>("B")
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("K")
                                  .Attr<int64_t>("chunk_rows"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_convbatch
