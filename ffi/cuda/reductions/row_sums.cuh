// SPDX-License-Identifier: Apache-2.0
// Sums over rows: of a matrix as it is, or of what is made of two matrices and
// written on the way.
//
// A matrix [rows, K] whose K is no multiple of a vector is read as one of wider
// rows, several of its own after another: then every load is a vector, and the
// sums of the wide row's parts are added in the end.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "cuda/common/dependent_launch.cuh"
#include "cuda/common/dtypes.h"
#include "cuda/common/fast_divmod.h"
#include "cuda/reductions/add_chunks.cuh"
#include "cuda/reductions/add_teams.cuh"
#include "cuda/reductions/load_in_order.cuh"

namespace jax_convbatch {

inline constexpr int64_t kManyBlocks = 264;      // enough to occupy a GPU
inline constexpr int64_t kLeastLanesBytes = 64;  // of neighbouring columns

// in[batch, elements] as rows of `columns` vectors, the last row perhaps short,
// -> out[batch, chunks, columns]. A piece is as many rows as a block loads at
// once; all pieces but the last have whole rows only. A block sums one chunk,
// some of the pieces, for one tile of `lanes` columns; its threads are `teams`
// that share the rows. Chunk c begins with piece c * first_step and goes on
// with every piece_step-th.
struct RowSums {
  int64_t elements, columns;
  int64_t whole_rows, rest;  // elements: so many whole rows, and the rest
  int64_t step;              // vectors from a thread's load to its next
  int64_t piece_vectors;
  int pieces, whole_pieces, first_step, piece_step;
  unsigned chunks, tiles;
  int lanes, teams;
  FastDivmod<uint32_t> by_chunks, by_tiles, by_lanes;
  bool partial;
};

// values[] = the vector's elements.
template <typename T, int kVector>
__device__ __forceinline__ void Widen(const Vector<T, kVector>& from,
                                      Accumulator<T> (&values)[kVector]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kVector % 2 == 0) {
    // Left alone the compiler takes the upper half out before it moves it up.
    union {
      Vector<T, kVector> vector;
      uint32_t words[kVector / 2];
    } pairs = {.vector = from};
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      values[i] = __uint_as_float(pairs.words[i / 2] << 16);
      values[i + 1] = __uint_as_float(pairs.words[i / 2] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      values[i] = Convert<Accumulator<T>>(from.values[i]);
    }
  }
}

// What is summed, a Source, is given the first element of its thread's column,
// then loads and adds a vector at a time, and what is less as elements.

// in[].
template <typename In, int kVector>
struct PlainSource {
  using Acc = Accumulator<In>;
  using Loaded = Vector<In, kVector>;
  // Registers for four blocks an SM: three of these, all that there are, at
  // once, and one of the second kernel, which waits there for the end.
  static constexpr int kThreads = 256, kBlocks = 4;
  static constexpr int kUnroll = kVector == 1 ? 16 : 8;  // loads in flight
  static constexpr int kMaxLanes = 16;  // columns of a tile, in vectors
  static constexpr bool kSpread = true;
  static constexpr int64_t kVectorBytes = sizeof(Loaded);
  const In* in;

  __device__ void SetColumn(int64_t) const {}
  __device__ Loaded Load(int64_t at) const {
    return LoadInOrder(reinterpret_cast<const Loaded*>(in) + at);
  }
  __device__ void Add(const Loaded& loaded, int64_t,
                      Acc (&sum)[kVector]) const {
    Acc values[kVector];
    Widen(loaded, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += values[i];
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
  static constexpr int kThreads = 256, kBlocks = 2;
  static constexpr int kUnroll = 4;
  static constexpr int kMaxLanes = 16;
  static constexpr bool kSpread = true;
  static constexpr int64_t kVectorBytes = sizeof(Vector<T, kVector>);
  const T *saved, *dy;
  T* dz;
  Grad grad;

  __device__ void SetColumn(int64_t) const {}
  __device__ Loaded Load(int64_t at) const {
    using V = Vector<T, kVector>;
    return {LoadInOrder(reinterpret_cast<const V*>(saved) + at),
            LoadInOrder(reinterpret_cast<const V*>(dy) + at)};
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

// at += step, which the compiler must not replace by a sum for each of several
// steps: those would need registers.
__device__ __forceinline__ void Step(int64_t& at, int64_t step) {
  at += step;
  asm volatile("" : "+l"(at));
}

// out has Acc where s.partial, otherwise T. Without `out` the sums are dropped.
template <typename T, int kVector, typename Source>
__global__ void __launch_bounds__(Source::kThreads, Source::kBlocks)
    SumRowsKernel(const __grid_constant__ RowSums s, const Source sources,
                  void* __restrict__ out) {
  using Acc = typename Source::Acc;
  constexpr int kUnroll = Source::kUnroll;
  if (s.partial) LaunchDependents();
  // From the end, which whoever made the matrix wrote last: the L2 has it yet,
  // and what is written here last is what the next kernel reads first.
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const unsigned chunk_of_batch = s.by_tiles.Divide(block);
  const unsigned tile = block - chunk_of_batch * s.tiles;
  const unsigned batch = s.by_chunks.Divide(chunk_of_batch);
  const int chunk = static_cast<int>(chunk_of_batch - batch * s.chunks);
  const int team = s.by_lanes.Divide(threadIdx.x);
  const int64_t first_column = int64_t{tile} * s.lanes;
  const int64_t column = first_column + threadIdx.x - team * s.lanes;
  Source source = sources.Batch(batch * s.elements);

  Acc sum[kVector] = {};
  if (team < s.teams && column < s.columns) {
    source.SetColumn(column * kVector);
    int piece = chunk * s.first_step;
    const int end =
        Source::kSpread ? s.pieces : min(s.pieces, piece + s.first_step);
    const int whole = min(end, s.whole_pieces);
    int64_t at = piece * s.piece_vectors + team * s.columns + column;
    const int64_t turn = s.piece_step * s.piece_vectors;
    for (; piece < whole; piece += s.piece_step, at += turn) {
      typename Source::Loaded loaded[kUnroll];
      int64_t next = at;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, Step(next, s.step)) {
        loaded[u] = source.Load(next);
      }
      next = at;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, Step(next, s.step)) {
        source.Add(loaded[u], next, sum);
      }
    }
    if (piece < end) {  // the last piece
      // Its whole rows, and whether the short one has a vector of this column.
      const int rows =
          static_cast<int>(s.whole_rows - int64_t{piece} * kUnroll * s.teams);
      const bool in_rest = (column + 1) * kVector <= s.rest;
      typename Source::Loaded loaded[kUnroll];
      int64_t next = at;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, Step(next, s.step)) {
        if (u * s.teams + team < rows + in_rest) loaded[u] = source.Load(next);
      }
      next = at;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, Step(next, s.step)) {
        if (u * s.teams + team < rows + in_rest) {
          source.Add(loaded[u], next, sum);
        }
      }
      if (!in_rest && rows % s.teams == team) {
        const int64_t vector = s.whole_rows * s.columns + column;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const int64_t element = vector * kVector + i;
          if (element < s.elements) sum[i] += source.Element(element);
        }
      }
    }
  }
  if (out == nullptr) return;
  const int64_t to = int64_t{chunk_of_batch} * s.columns + first_column;
  const int64_t lanes = s.columns - first_column;
  AddTeams<kVector, Source::kThreads>(
      sum, s.lanes, s.teams, [&](int lane, int i, Acc total) {
        if (lane >= lanes) return;
        const int64_t element = (to + lane) * kVector + i;
        if (s.partial) {
          static_cast<Acc*>(out)[element] = total;
        } else {
          static_cast<T*>(out)[element] = Convert<T>(total);
        }
      });
}

// How many rows of K channels a wide row has, in vectors of kVector.
template <int kVector>
int64_t RowsTogether(int64_t K) {
  return kVector / std::gcd<int64_t>(K, kVector);
}

// How to sum `rows` rows of K channels in at most as many chunks as there are
// `chunk_rows` in them.
template <int kVector, typename Source>
RowSums PlanRowSums(int64_t batch, int64_t rows, int64_t K,
                    int64_t chunk_rows) {
  const int64_t together = RowsTogether<kVector>(K);
  RowSums s{};
  s.elements = rows * K;
  s.columns = together * K / kVector;
  s.whole_rows = rows / together;
  s.rest = rows % together * K;
  const int64_t all_rows = s.whole_rows + (s.rest > 0);
  chunk_rows = (chunk_rows + together - 1) / together;
  int64_t chunks = (all_rows + chunk_rows - 1) / chunk_rows;
  // Neighbouring threads read neighbouring columns; fewer of them, and more
  // blocks, where there would be too few blocks.
  int64_t lanes = Source::kMaxLanes;
  auto tiles = [&] { return (s.columns + lanes - 1) / lanes; };
  while (2 * kLeastLanesBytes <= lanes * Source::kVectorBytes &&
         batch * chunks * tiles() < kManyBlocks) {
    lanes /= 2;
  }
  s.tiles = static_cast<unsigned>(tiles());
  s.lanes = static_cast<int>((s.columns + s.tiles - 1) / s.tiles);
  s.teams = Source::kThreads / s.lanes;
  s.step = s.teams * s.columns;
  s.piece_vectors = Source::kUnroll * s.step;
  const int64_t at_once = Source::kUnroll * s.teams;
  const int64_t pieces = (all_rows + at_once - 1) / at_once;
  // Every chunk takes the same number of turns, the last perhaps fewer.
  const int64_t most = Source::kSpread ? (pieces + chunks - 1) / chunks
                                       : (chunk_rows + at_once - 1) / at_once;
  chunks = (pieces + most - 1) / most;
  s.pieces = static_cast<int>(pieces);
  s.whole_pieces = static_cast<int>(s.whole_rows / at_once);
  // What blocks read at a time lies together, which memory likes, where chunks
  // take turns.
  s.first_step = static_cast<int>(Source::kSpread ? 1 : most);
  s.piece_step = static_cast<int>(Source::kSpread ? chunks : 1);
  s.chunks = static_cast<unsigned>(chunks);
  s.by_chunks = FastDivmod<uint32_t>(s.chunks);
  s.by_tiles = FastDivmod<uint32_t>(s.tiles);
  s.by_lanes = FastDivmod<uint32_t>(s.lanes);
  return s;
}

// out: [batch, s.chunks, RowsTogether(K) * K] of Acc where s.partial, otherwise
// of T, or null.
template <typename T, int kVector, typename Source>
cudaError_t LaunchSumRows(cudaStream_t stream, int64_t batch, const RowSums& s,
                          const Source& source, void* out) {
  const int64_t blocks = batch * s.chunks * s.tiles;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  SumRowsKernel<T, kVector>
      <<<static_cast<unsigned>(blocks), Source::kThreads, 0, stream>>>(
          s, source, out);
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
  RowSums s = PlanRowSums<kVector, Source>(batch, rows, K, chunk_rows);
  const int64_t sums = s.chunks * RowsTogether<kVector>(K);
  if (db == nullptr || sums == 1) {
    return LaunchSumRows<T, kVector>(stream, batch, s, source, db);
  }
  s.partial = true;
  const cudaError_t status =
      LaunchSumRows<T, kVector>(stream, batch, s, source, partials);
  if (status != cudaSuccess) return status;
  return LaunchAddChunks(stream, batch, sums, K, partials, static_cast<T*>(db));
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
