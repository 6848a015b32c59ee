// Sums over rows: of a matrix as it is, or of what is made of two matrices and
// written on the way.
//
// A matrix [rows, K] whose K is no multiple of a vector is read as one of wider
// rows, several of its own after another: then every load is a vector, and the
// sums of the wide row's parts are added in the end.
#ifndef JAX_CONVBATCH_CUDA_ROW_SUMS_CUH_
#define JAX_CONVBATCH_CUDA_ROW_SUMS_CUH_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "cuda/dtypes.h"

namespace jax_convbatch {

inline constexpr int kSumThreads = 256;
inline constexpr int kFinalThreads = 1024;   // where chunks' sums are added
inline constexpr int kMaxLanes = 64;         // columns of a tile, in vectors
inline constexpr int64_t kManyBlocks = 528;  // enough to occupy a GPU
inline constexpr int64_t kLeastLanesBytes = 64;  // of neighbouring columns

// in[batch, elements] as rows of `columns` vectors, the last row perhaps short,
// -> out[batch, chunks, columns]. A block sums one chunk of the rows of one
// tile of `lanes` columns; its threads are `teams` that share the rows.
struct RowSums {
  int64_t elements, rows, columns, chunk_rows;
  int64_t whole_rows, rest;  // elements: so many whole rows, and the rest
  unsigned chunks, tiles;
  int lanes, teams;
  bool partial;
};

// What is summed, a Source, is given the first element of its thread's column,
// then loads and adds a vector at a time, and what is less as elements.

// in[].
template <typename In, int kVector>
struct PlainSource {
  using Acc = Accumulator<In>;
  using Loaded = Vector<In, kVector>;
  static constexpr int kUnroll = kVector == 1 ? 16 : 8;  // loads in flight
  static constexpr int64_t kVectorBytes = sizeof(Loaded);
  const In* in;

  __device__ void SetColumn(int64_t) const {}
  __device__ Loaded Load(int64_t at) const {
    return reinterpret_cast<const Loaded*>(in)[at];
  }
  __device__ void Add(const Loaded& loaded, int64_t,
                      Acc (&sum)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] += Convert<Acc>(loaded.values[i]);
    }
  }
  __device__ Acc Element(int64_t at) const { return Convert<Acc>(in[at]); }
  __device__ PlainSource Batch(int64_t offset) const { return {in + offset}; }
};

// What is also written: dz[] = grad(saved[], dy[]).
template <typename T, int kVector, typename Grad>
struct GradSource {
  using Acc = Accumulator<T>;
  struct Loaded {
    Vector<T, kVector> saved, dy;
  };
  static constexpr int kUnroll = 4;
  static constexpr int64_t kVectorBytes = sizeof(Vector<T, kVector>);
  const T *saved, *dy;
  T* dz;
  Grad grad;

  __device__ void SetColumn(int64_t) const {}
  __device__ Loaded Load(int64_t at) const {
    return {reinterpret_cast<const Vector<T, kVector>*>(saved)[at],
            reinterpret_cast<const Vector<T, kVector>*>(dy)[at]};
  }
  __device__ void Add(const Loaded& loaded, int64_t at,
                      Acc (&sum)[kVector]) const {
    Vector<T, kVector> result;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const Acc value = grad(Convert<Acc>(loaded.saved.values[i]),
                             Convert<Acc>(loaded.dy.values[i]));
      result.values[i] = Convert<T>(value);
      sum[i] += value;
    }
    reinterpret_cast<Vector<T, kVector>*>(dz)[at] = result;
  }
  __device__ Acc Element(int64_t at) const {
    const Acc value = grad(Convert<Acc>(saved[at]), Convert<Acc>(dy[at]));
    dz[at] = Convert<T>(value);
    return value;
  }
  __device__ GradSource Batch(int64_t offset) const {
    return {saved + offset, dy + offset, dz + offset, grad};
  }
};

// out has Acc where s.partial, otherwise T. Without `out` the sums are dropped.
template <typename T, int kVector, int kThreads, typename Source>
__global__ void __launch_bounds__(kThreads)
    SumRowsKernel(const __grid_constant__ RowSums s, const Source sources,
                  void* __restrict__ out) {
  using Acc = typename Source::Acc;
  // From the end, which whoever made the matrix wrote last: the L2 has it yet,
  // and what is written here last is what the next kernel reads first.
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const unsigned chunk_of_batch = block / s.tiles;
  const unsigned tile = block - chunk_of_batch * s.tiles;
  const unsigned batch = chunk_of_batch / s.chunks;
  const int64_t chunk = chunk_of_batch - batch * s.chunks;
  const int team = threadIdx.x / s.lanes;
  const int64_t column = int64_t{tile} * s.lanes + threadIdx.x - team * s.lanes;
  Source source = sources.Batch(batch * s.elements);

  Acc sum[kVector] = {};
  const bool active = team < s.teams && column < s.columns;
  if (active) {
    // Of this column: rows with a whole vector, then perhaps one with less.
    const int64_t whole = s.whole_rows + ((column + 1) * kVector <= s.rest);
    const int64_t limit = min(s.rows, (chunk + 1) * s.chunk_rows);
    const int64_t end = min(whole, limit);
    const int64_t step = s.teams * s.columns;
    source.SetColumn(column * kVector);
    int64_t row = chunk * s.chunk_rows + team;
    int64_t at = row * s.columns + column;
    constexpr int kUnroll = Source::kUnroll;
    if constexpr (kUnroll > 1) {
      for (; row + (kUnroll - 1) * s.teams < end; row += kUnroll * s.teams) {
        typename Source::Loaded loaded[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          loaded[u] = source.Load(at + u * step);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          source.Add(loaded[u], at + u * step, sum);
        }
        at += kUnroll * step;
      }
    }
    for (; row < end; row += s.teams, at += step) {
      source.Add(source.Load(at), at, sum);
    }
    if (row < limit) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int64_t element = at * kVector + i;
        if (element < s.elements) sum[i] += source.Element(element);
      }
    }
  }
  if (out == nullptr) return;

  // The teams' sums, pairwise.
  __shared__ Acc shared[kVector][kThreads];
#pragma unroll
  for (int i = 0; i < kVector; ++i) shared[i][threadIdx.x] = sum[i];
  for (int teams = s.teams; teams > 1;) {
    const int half = (teams + 1) / 2;
    __syncthreads();
    if (team < teams - half) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        shared[i][threadIdx.x] += shared[i][threadIdx.x + half * s.lanes];
      }
    }
    teams = half;
  }
  // What the first team reads here it has written itself.
  if (team == 0 && active) {
    const int64_t at = int64_t{chunk_of_batch} * s.columns + column;
    auto store = [&](auto result) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        result.values[i] = Convert<std::decay_t<decltype(result.values[0])>>(
            shared[i][threadIdx.x]);
      }
      static_cast<decltype(result)*>(out)[at] = result;
    };
    if (s.partial) {
      store(Vector<Acc, kVector>());
    } else {
      store(Vector<T, kVector>());
    }
  }
}

// How many rows of K channels a wide row has, in vectors of kVector.
template <int kVector>
int64_t RowsTogether(int64_t K) {
  return kVector / std::gcd<int64_t>(K, kVector);
}

// Sums of `rows` rows of K channels, chunk by chunk; the chunks' sums are as
// long as a wide row. out: [batch, chunks, RowsTogether(K) * K] or null.
template <typename T, int kVector, int kThreads, typename Source>
cudaError_t LaunchSumRows(cudaStream_t stream, int64_t batch, int64_t rows,
                          int64_t K, int64_t chunk_rows, const Source& source,
                          bool partial, void* out) {
  const int64_t together = RowsTogether<kVector>(K);
  RowSums s;
  s.partial = partial;
  s.elements = rows * K;
  s.rows = (rows + together - 1) / together;
  s.columns = together * K / kVector;
  s.chunk_rows = (chunk_rows + together - 1) / together;
  const int64_t chunks = (s.rows + s.chunk_rows - 1) / s.chunk_rows;
  s.whole_rows = s.elements / (together * K);
  s.rest = s.elements % (together * K);
  // Neighbouring threads read neighbouring columns; fewer of them, and more
  // blocks, where there would be too few blocks.
  int64_t lanes = kMaxLanes;
  auto tiles = [&] { return (s.columns + lanes - 1) / lanes; };
  while (2 * kLeastLanesBytes <= lanes * Source::kVectorBytes &&
         batch * chunks * tiles() < kManyBlocks) {
    lanes /= 2;
  }
  const int64_t blocks = batch * chunks * tiles();
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  s.chunks = static_cast<unsigned>(chunks);
  s.tiles = static_cast<unsigned>(tiles());
  s.lanes = static_cast<int>((s.columns + s.tiles - 1) / s.tiles);
  s.teams = kThreads / s.lanes;
  SumRowsKernel<T, kVector, kThreads>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(s, source, out);
  return cudaGetLastError();
}

// Bytes of `partials` below.
template <typename T>
int64_t PartialBytes(int64_t batch, int64_t rows, int64_t K,
                     int64_t chunk_rows) {
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  return batch * chunks * RowsTogether<16 / sizeof(T)>(K) * K *
         int64_t{sizeof(Accumulator<T>)};
}

// db[batch, K] = the sum of what `source` gives over the rows, or nothing where
// db is null. chunk_rows must be a multiple of RowsTogether.
template <typename T, int kVector, typename Source>
cudaError_t SumSource(cudaStream_t stream, int64_t batch, int64_t rows,
                      int64_t K, int64_t chunk_rows, const Source& source,
                      void* partials, void* db) {
  using Acc = Accumulator<T>;
  const int64_t together = RowsTogether<kVector>(K);
  const int64_t chunks = (rows + chunk_rows - 1) / chunk_rows;
  if (db == nullptr || chunks * together == 1) {
    return LaunchSumRows<T, kVector, kSumThreads>(
        stream, batch, rows, K, chunk_rows, source, /*partial=*/false, db);
  }
  const cudaError_t status = LaunchSumRows<T, kVector, kSumThreads>(
      stream, batch, rows, K, chunk_rows, source, /*partial=*/true, partials);
  if (status != cudaSuccess) return status;
  const int64_t sums = chunks * together;
  const PlainSource<Acc, 1> in{static_cast<const Acc*>(partials)};
  return LaunchSumRows<T, 1, kFinalThreads>(stream, batch, sums, K, sums, in,
                                            /*partial=*/false, db);
}

// Calls f with std::integral_constant of the vector to read by: 16 bytes, or an
// element where the matrices of a batch do not all start at a vector.
template <typename T, typename F>
cudaError_t ForVector(int64_t batch, int64_t rows, int64_t K, F&& f) {
  constexpr int kVector = 16 / sizeof(T);
  if (batch == 1 || rows * K % kVector == 0) {
    return f(std::integral_constant<int, kVector>());
  }
  return f(std::integral_constant<int, 1>());
}

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CUDA_ROW_SUMS_CUH_
