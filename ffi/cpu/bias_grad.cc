// SPDX-License-Identifier: Apache-2.0
// db[B, K] = the sum over rows of dy[B, rows, K], or of dz, which is formed in
// the same pass: dz = a'(saved) dy.
//
// The rows are cut into chunks of a fixed length; each chunk's sum is formed by
// one thread, row after row, and the sums are added in order. The number of
// threads decides only who forms which sum.
#include "bias_grad.h"

#include <algorithm>
#include <optional>

#include "act_loops.h"
#include "ffi_checks.h"
#include "half.h"
#include "huge_pages.h"

namespace jax_convbatch {
namespace {

struct Sizes {
  int64_t B, rows, K, chunk_rows;
  int64_t chunks() const { return (rows + chunk_rows - 1) / chunk_rows; }
};

// Null where there is nothing of the kind: without `saved` dz is dy and is not
// written, without `db` nothing is summed.
template <typename T>
struct Arrays {
  Activation activation;
  const T *saved, *dy;
  T *dz, *db;
  Compute<T>* sums;
};

// in[] in the type of the arithmetic: itself, or a copy in `buffer`.
template <typename T>
const Compute<T>* Tile(const T* in, int64_t count, Compute<T>* buffer) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return in;
  } else {
    for (int64_t i = 0; i < count; ++i) buffer[i] = ToCompute(in[i]);
    return buffer;
  }
}

// Elements [begin, begin + count) of dz, which are returned as numbers.
template <typename T>
const Compute<T>* FormDz(const Arrays<T>& a, int64_t begin, int64_t count,
                         Compute<T>* first, Compute<T>* second) {
  const Compute<T>* dy = Tile(a.dy + begin, count, first);
  if (a.saved == nullptr) return dy;
  const Compute<T>* saved = Tile(a.saved + begin, count, second);
  if constexpr (std::is_same_v<T, Compute<T>>) {
    GradTile(a.activation, saved, dy, a.dz + begin, count);
    return a.dz + begin;
  } else {
    GradTile(a.activation, saved, dy, first, count);
    T* dz = a.dz + begin;
    for (int64_t i = 0; i < count; ++i) dz[i] = FromCompute<T>(first[i]);
    return first;
  }
}

template <typename T>
void Sum(const Sizes& s, const Arrays<T>& a) {
  using A = Compute<T>;
  const int64_t chunks = s.chunks();
  // Whole rows, where a tile holds any; otherwise pieces of one row.
  const int64_t width = std::min(s.K, kTileElements);
  const int64_t tile_rows = kTileElements / width;
  ParallelFor(s.B * chunks, 1, [&](int64_t begin, int64_t end) {
    A first[kTileElements], second[kTileElements];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / chunks, from = i % chunks * s.chunk_rows;
      const int64_t to = std::min(from + s.chunk_rows, s.rows);
      A* sum = a.db == nullptr ? nullptr : a.sums + i * s.K;
      if (sum != nullptr) std::fill_n(sum, s.K, A{0});
      for (int64_t r = from; r < to; r += tile_rows) {
        const int64_t rows = std::min(tile_rows, to - r);
        for (int64_t k = 0; k < s.K; k += width) {
          const int64_t columns = std::min(width, s.K - k);
          const A* dz = FormDz(a, (b * s.rows + r) * s.K + k, rows * columns,
                               first, second);
          if (sum != nullptr) AddRows(dz, rows, columns, sum + k);
        }
      }
    }
  });
  if (a.db == nullptr) return;
  for (int64_t b = 0; b < s.B; ++b) {
    A* total = a.sums + b * chunks * s.K;
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      AddRows(total + chunk * s.K, 1, s.K, total);
    }
    for (int64_t k = 0; k < s.K; ++k) {
      a.db[b * s.K + k] = FromCompute<T>(total[k]);
    }
  }
}

struct Buffers {
  Activation activation;
  std::optional<ffi::AnyBuffer> saved;
  ffi::AnyBuffer dy;
  std::optional<ffi::AnyBuffer> dz, db;
  ffi::AnyBuffer workspace;
};

template <typename T>
ffi::Error Run(const Sizes& s, const Buffers& in) {
  auto data = [](const std::optional<ffi::AnyBuffer>& buffer) {
    return buffer ? static_cast<T*>(buffer->untyped_data()) : nullptr;
  };
  const int64_t needed = s.B * s.chunks() * s.K * int64_t{sizeof(Compute<T>)};
  if (in.db && static_cast<int64_t>(in.workspace.size_bytes()) < needed) {
    return ffi::Error::Internal(
        "jax_convbatch: bgrad's workspace is too small");
  }
  Sum<T>(s,
         {in.activation, data(in.saved), data(in.dy), data(in.dz), data(in.db),
          static_cast<Compute<T>*>(in.workspace.untyped_data())});
  return ffi::Error::Success();
}

ffi::Error Dispatch(const Sizes& s, const Buffers& in) {
  const ffi::DataType dtype = in.dy.element_type();
  auto fits = [&](const std::optional<ffi::AnyBuffer>& buffer, int64_t count) {
    return !buffer || (buffer->element_type() == dtype &&
                       static_cast<int64_t>(buffer->element_count()) == count);
  };
  const int64_t elements = s.B * s.rows * s.K;
  if (s.chunk_rows < 1 || !fits(in.dy, elements) || !fits(in.saved, elements) ||
      !fits(in.dz, elements) || !fits(in.db, s.B * s.K)) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: bgrad's sizes or dtypes do not match its arrays");
  }
  if (elements == 0) {
    if (in.db) {
      std::fill_n(static_cast<char*>(in.db->untyped_data()),
                  in.db->size_bytes(), 0);
    }
    return ffi::Error::Success();
  }
  switch (dtype) {
    case ffi::F32:
      return Run<float>(s, in);
    case ffi::F64:
      return Run<double>(s, in);
    case ffi::F16:
      return Run<Half>(s, in);
    case ffi::BF16:
      return Run<BFloat16>(s, in);
    default:
      return ffi::Error::InvalidArgument(
          "jax_convbatch: unsupported dtype in bgrad");
  }
}

ffi::Error BiasGradImpl(ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> db,
                        ffi::Result<ffi::AnyBuffer> workspace, int64_t B,
                        int64_t rows, int64_t K, int64_t chunk_rows) {
  return Dispatch(
      {B, rows, K, chunk_rows},
      {Activation::kIdentity, std::nullopt, dy, std::nullopt, *db, *workspace});
}

// db is wanted where there is a third result.
ffi::Error ActBgradImpl(ffi::AnyBuffer saved, ffi::AnyBuffer dy,
                        ffi::Result<ffi::AnyBuffer> dz,
                        ffi::Result<ffi::AnyBuffer> workspace,
                        ffi::RemainingRets rest, std::string_view name,
                        int64_t B, int64_t rows, int64_t K,
                        int64_t chunk_rows) {
  const auto activation = ParseActivation(name);
  if (!activation) {
    return ffi::Error::InvalidArgument("jax_convbatch: unknown activation");
  }
  std::optional<ffi::AnyBuffer> db;
  if (rest.size() > 0) {
    auto third = rest.get<ffi::AnyBuffer>(0);
    if (!third.has_value()) return third.error();
    db = **third;
  }
  AskForHugePages({*dz});
  return Dispatch({B, rows, K, chunk_rows},
                  {*activation, saved, dy, *dz, db, *workspace});
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(ActBgradCpu, ActBgradImpl,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>(/*y or z*/)
                                  .Arg<ffi::AnyBuffer>(/*dy*/)
                                  .Ret<ffi::AnyBuffer>(/*dz*/)
                                  .Ret<ffi::AnyBuffer>(/*workspace*/)
                                  .RemainingRets(/*db, where wanted*/)
                                  .Attr<std::string_view>("activation")
                                  .Attr<int64_t>("B")
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("K")
                                  .Attr<int64_t>("chunk_rows"));

}  // namespace jax_convbatch
