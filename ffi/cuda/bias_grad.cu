// The bias gradient: db[b, k] is the sum of dy[b, row, k] over the rows.
//
// Rows are summed in chunks whose borders the caller chose, then the chunks'
// sums are summed by the same kernel. Which thread adds what, and in which
// order, follows from the sizes alone.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>

#include "cuda/dtypes.h"
#include "cuda/handlers.h"
#include "cuda/status.h"
#include "ffi_checks.h"

namespace jax_convbatch {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;            // loads in flight in a thread
constexpr int64_t kManyBlocks = 256;  // enough to occupy a GPU
constexpr int kLeastBytes = 64;       // of neighbouring columns, for a tile

// in[batch, rows, columns] -> out[batch, chunks, columns], columns counted in
// vectors. A block sums one chunk of one tile of `lanes` columns; its threads
// are kThreads / lanes teams that share the rows.
struct Tiling {
  int64_t rows, columns, chunk_rows, chunks, tiles;
  int lanes;
};

template <typename In, typename Out, int kVector>
__global__ void __launch_bounds__(kThreads)
    SumRowsKernel(const __grid_constant__ Tiling tiling,
                  const Vector<In, kVector>* __restrict__ in,
                  Vector<Out, kVector>* __restrict__ out) {
  using Acc = Accumulator<In>;
  const int64_t tile = blockIdx.x % tiling.tiles;
  const int64_t chunk_of_batch = blockIdx.x / tiling.tiles;
  const int64_t chunk = chunk_of_batch % tiling.chunks;
  const int64_t batch = chunk_of_batch / tiling.chunks;
  const int teams = kThreads / tiling.lanes;
  const int team = threadIdx.x / tiling.lanes;
  const int64_t column = tile * tiling.lanes + threadIdx.x % tiling.lanes;
  const int64_t end = min(tiling.rows, (chunk + 1) * tiling.chunk_rows);

  Acc sum[kVector] = {};
  if (column < tiling.columns) {
    const Vector<In, kVector>* at =
        in + batch * tiling.rows * tiling.columns + column;
    int64_t row = chunk * tiling.chunk_rows + team;
    for (; row + (kUnroll - 1) * teams < end; row += kUnroll * teams) {
      Vector<In, kVector> loaded[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        loaded[u] = at[(row + u * teams) * tiling.columns];
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          sum[i] += Convert<Acc>(loaded[u].values[i]);
        }
      }
    }
    for (; row < end; row += teams) {
      const Vector<In, kVector> loaded = at[row * tiling.columns];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        sum[i] += Convert<Acc>(loaded.values[i]);
      }
    }
  }

  // The teams' sums, pairwise.
  __shared__ Acc shared[kVector][kThreads];
#pragma unroll
  for (int i = 0; i < kVector; ++i) shared[i][threadIdx.x] = sum[i];
  for (int distance = kThreads / 2; distance >= tiling.lanes; distance /= 2) {
    __syncthreads();
    if (threadIdx.x < distance) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        shared[i][threadIdx.x] += shared[i][threadIdx.x + distance];
      }
    }
  }
  // What thread 0 .. lanes - 1 reads here it has written itself.
  if (team == 0 && column < tiling.columns) {
    Vector<Out, kVector> result;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      result.values[i] = Convert<Out>(shared[i][threadIdx.x]);
    }
    out[chunk_of_batch * tiling.columns + column] = result;
  }
}

int64_t PowerOfTwoFrom(int64_t size) {
  int64_t power = 1;
  while (power < size) power *= 2;
  return power;
}

template <typename In, typename Out, int kVector>
cudaError_t LaunchSumRows(cudaStream_t stream, int64_t batch, int64_t rows,
                          int64_t columns, int64_t chunk_rows, const void* in,
                          void* out) {
  Tiling tiling;
  tiling.rows = rows;
  tiling.columns = columns / kVector;
  tiling.chunk_rows = chunk_rows;
  tiling.chunks = (rows + chunk_rows - 1) / chunk_rows;
  const auto tiles = [&](int64_t lanes) {
    return (tiling.columns + lanes - 1) / lanes;
  };
  // A warp reads neighbouring columns: more lanes only where the rows are too
  // few for so many teams, fewer only where there would be too few blocks.
  const int64_t least_lanes =
      kThreads / std::min<int64_t>(kThreads, PowerOfTwoFrom(chunk_rows));
  int64_t lanes = std::min(PowerOfTwoFrom(tiling.columns),
                           std::max<int64_t>(32, least_lanes));
  while (lanes > least_lanes && lanes * kVector * sizeof(In) > kLeastBytes &&
         batch * tiling.chunks * tiles(lanes) < kManyBlocks) {
    lanes /= 2;
  }
  tiling.lanes = static_cast<int>(lanes);
  tiling.tiles = tiles(lanes);
  const int64_t blocks = batch * tiling.chunks * tiling.tiles;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  SumRowsKernel<In, Out, kVector>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
          tiling, static_cast<const Vector<In, kVector>*>(in),
          static_cast<Vector<Out, kVector>*>(out));
  return cudaGetLastError();
}

// in[batch, rows, columns] -> out[batch, ceil(rows / chunk_rows), columns].
template <typename In, typename Out>
cudaError_t SumRows(cudaStream_t stream, int64_t batch, int64_t rows,
                    int64_t columns, int64_t chunk_rows, const void* in,
                    void* out) {
  constexpr int kVector = 16 / sizeof(In);
  if (columns % kVector == 0) {
    return LaunchSumRows<In, Out, kVector>(stream, batch, rows, columns,
                                           chunk_rows, in, out);
  }
  return LaunchSumRows<In, Out, 1>(stream, batch, rows, columns, chunk_rows, in,
                                   out);
}

template <typename T>
cudaError_t Bgrad(cudaStream_t stream, int64_t batch, int64_t rows,
                  int64_t columns, int64_t chunk_rows, const void* dy,
                  void* partials, void* db) {
  using Acc = Accumulator<T>;
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  if (chunks == 1) {
    return SumRows<T, T>(stream, batch, rows, columns, chunk_rows, dy, db);
  }
  if (const cudaError_t status = SumRows<T, Acc>(stream, batch, rows, columns,
                                                 chunk_rows, dy, partials);
      status != cudaSuccess) {
    return status;
  }
  return SumRows<Acc, T>(stream, batch, chunks, columns, chunks, partials, db);
}

ffi::Error BgradExecute(cudaStream_t stream, ffi::AnyBuffer dy,
                        ffi::Result<ffi::AnyBuffer> db,
                        ffi::Result<ffi::AnyBuffer> workspace, int64_t batch,
                        int64_t rows, int64_t columns, int64_t chunk_rows) {
  const auto describe = [&] {
    std::ostringstream out;
    out << "bgrad of dy[" << batch << ", " << rows << ", " << columns
        << "] in chunks of " << chunk_rows << " rows";
    return out.str();
  };
  const ffi::DataType dtype = dy.element_type();
  if (!SupportedDtype(dtype) || db->element_type() != dtype || chunk_rows < 1 ||
      static_cast<int64_t>(dy.element_count()) != batch * rows * columns ||
      static_cast<int64_t>(db->element_count()) != batch * columns) {
    return ffi::Error::InvalidArgument(
        "jax_convbatch: unsupported dtypes or sizes in " + describe());
  }
  if (db->element_count() == 0) return ffi::Error::Success();
  if (rows == 0) {
    return ToError(
        cudaMemsetAsync(db->untyped_data(), 0, db->size_bytes(), stream),
        describe);
  }
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  const int64_t needed = batch * chunks * columns * (dtype == ffi::F64 ? 8 : 4);
  if (chunks > 1 && static_cast<int64_t>(workspace->size_bytes()) < needed) {
    return ffi::Error::Internal(
        "jax_convbatch: the workspace is too small in " + describe());
  }
  return ToError(DispatchDtype(dtype,
                               [&](auto tag) {
                                 using T = typename decltype(tag)::type;
                                 return Bgrad<T>(stream, batch, rows, columns,
                                                 chunk_rows, dy.untyped_data(),
                                                 workspace->untyped_data(),
                                                 db->untyped_data());
                               }),
                 describe);
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

}  // namespace jax_convbatch
