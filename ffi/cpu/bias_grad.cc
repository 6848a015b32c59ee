// db[B, K] = the sum over rows of dy[B, rows, K].
//
// The rows are cut into chunks of a fixed length; each chunk's sum is formed by
// one thread, row after row, and the sums are added in order. The number of
// threads decides only who forms which sum.
#include "bias_grad.h"

#include <algorithm>

#include "ffi_checks.h"
#include "half.h"

namespace jax_convbatch {
namespace {

struct Sizes {
  int64_t B, rows, K, chunk_rows;
  int64_t chunks() const { return (rows + chunk_rows - 1) / chunk_rows; }
};

template <typename T>
void BiasGrad(const Sizes& s, const T* dy, T* db, Compute<T>* sums) {
  using A = Compute<T>;
  const int64_t chunks = s.chunks();
  ParallelFor(s.B * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / chunks, first = i % chunks * s.chunk_rows;
      const int64_t last = std::min(first + s.chunk_rows, s.rows);
      A* sum = sums + i * s.K;
      std::fill_n(sum, s.K, A{0});
      const T* row = dy + (b * s.rows + first) * s.K;
      for (int64_t r = first; r < last; ++r, row += s.K) {
        for (int64_t k = 0; k < s.K; ++k) sum[k] += ToCompute(row[k]);
      }
    }
  });
  for (int64_t b = 0; b < s.B; ++b) {
    A* total = sums + b * chunks * s.K;
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      const A* sum = total + chunk * s.K;
      for (int64_t k = 0; k < s.K; ++k) total[k] += sum[k];
    }
    for (int64_t k = 0; k < s.K; ++k)
      db[b * s.K + k] = FromCompute<T>(total[k]);
  }
}

template <typename T>
ffi::Error Run(const Sizes& s, ffi::AnyBuffer dy, ffi::AnyBuffer db,
               ffi::AnyBuffer workspace) {
  const int64_t needed = s.B * s.chunks() * s.K * int64_t{sizeof(Compute<T>)};
  if (static_cast<int64_t>(workspace.size_bytes()) < needed) {
    return ffi::Error::Internal(
        "jax_convbatch: bgrad's workspace is too small");
  }
  BiasGrad(s, static_cast<const T*>(dy.untyped_data()),
           static_cast<T*>(db.untyped_data()),
           static_cast<Compute<T>*>(workspace.untyped_data()));
  return ffi::Error::Success();
}

ffi::Error BiasGradImpl(ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> db,
                        ffi::Result<ffi::AnyBuffer> workspace, int64_t B,
                        int64_t rows, int64_t K, int64_t chunk_rows) {
  const Sizes s{B, rows, K, chunk_rows};
  if (chunk_rows < 1 ||
      static_cast<int64_t>(dy.element_count()) != B * rows * K ||
      static_cast<int64_t>(db->element_count()) != B * K) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: bgrad's sizes do not match its arrays");
  }
  if (B * K == 0) return ffi::Error::Success();
  if (rows == 0) {
    std::fill_n(static_cast<char*>(db->untyped_data()), db->size_bytes(), 0);
    return ffi::Error::Success();
  }
  switch (dy.element_type()) {
    case ffi::F32:
      return Run<float>(s, dy, *db, *workspace);
    case ffi::F64:
      return Run<double>(s, dy, *db, *workspace);
    case ffi::F16:
      return Run<Half>(s, dy, *db, *workspace);
    case ffi::BF16:
      return Run<BFloat16>(s, dy, *db, *workspace);
    default:
      return ffi::Error::InvalidArgument(
          "jax_convbatch: unsupported dtype in bgrad");
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(BiasGradCpu, BiasGradImpl,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>(/*dy*/)
                                  .Ret<ffi::AnyBuffer>(/*db*/)
                                  .Ret<ffi::AnyBuffer>(/*workspace*/)
                                  .Attr<int64_t>("B")
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("K")
                                  .Attr<int64_t>("chunk_rows"));

}  // namespace jax_convbatch
