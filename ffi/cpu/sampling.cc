// SPDX-License-Identifier: Apache-2.0
#include "sampling.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "im2col.h"
#include "parallel.h"
#include "vector_clones.h"

namespace jax_convbatch {
namespace {

// Bytes of columns that one task should touch, as in im2col.cc.
constexpr int64_t kTaskBytes = 1 << 20;

// The pixels of a cell's four corners, -1 where one is outside.
struct Cell {
  Cell(const ConvGeometry& g, int32_t cell) {
    const int64_t h = cell / (g.W + 1) - 1, w = cell % (g.W + 1) - 1;
    for (int64_t corner = 0; corner < 4; ++corner) {
      const int64_t y = h + corner / 2, x = w + corner % 2;
      const bool inside = y >= 0 && y < g.H && x >= 0 && x < g.W;
      pixel[corner] = inside ? y * g.W + x : -1;
    }
  }
  int64_t pixel[4];
};

// Channels that lie together both in a column and in an offset group.
struct Runs {
  explicit Runs(const ConvGeometry& g, int64_t offset_groups)
      : length(std::gcd(g.group_C(), g.C / offset_groups)),
        per_offset_group(g.C / offset_groups / length) {}
  int64_t length, per_offset_group;
};

// Where the columns of one sample have channel c of a tap of an output.
int64_t InColumn(const ConvGeometry& g, int64_t output, int64_t tap,
                 int64_t c) {
  const int64_t Cg = g.group_C();
  return ((c / Cg * g.output_pixels() + output) * g.taps() + tap) * Cg + c % Cg;
}

// The sum of a[i][lane] over lanes, in one order.
template <typename A, int kLanes>
A Total(A (&lanes)[kLanes]) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

constexpr int kLanes = 16;

// One loop for each task in the function that is cloned, as in act_loops.cc:
// what it calls is compiled for the oldest processor.
#define JCB_LOOPS(A)                                                          \
  JCB_VECTOR_CLONES                                                           \
  void Blend(const A* a, const A* b, const A* c, const A* d, const A* weight, \
             A* to, int64_t count) {                                          \
    for (int64_t i = 0; i < count; ++i) {                                     \
      to[i] = weight[0] * a[i] + weight[1] * b[i] + weight[2] * c[i] +        \
              weight[3] * d[i];                                               \
    }                                                                         \
  }                                                                           \
  JCB_VECTOR_CLONES                                                           \
  void AddScaled(A weight, const A* from, A* to, int64_t count) {             \
    for (int64_t i = 0; i < count; ++i) to[i] += weight * from[i];            \
  }                                                                           \
  JCB_VECTOR_CLONES                                                           \
  void AddProducts(const A* a, const A* b, int64_t count, A* lanes) {         \
    int64_t i = 0;                                                            \
    for (; i + kLanes <= count; i += kLanes) {                                \
      for (int j = 0; j < kLanes; ++j) lanes[j] += a[i + j] * b[i + j];       \
    }                                                                         \
    for (int j = 0; i + j < count; ++j) lanes[j] += a[i + j] * b[i + j];      \
  }
JCB_LOOPS(float)
JCB_LOOPS(double)
#undef JCB_LOOPS

}  // namespace

template <typename A>
void SampleColumns(const ConvGeometry& g, const Sampling<A>& at,
                   int64_t samples, const A* x, A* columns) {
  const Runs runs(g, at.offset_groups);
  const int64_t outputs = g.output_pixels(), taps = g.taps();
  const std::vector<A> outside(runs.length, A{0});
  const int64_t grain = kTaskBytes / (taps * g.C * int64_t{sizeof(A)}) + 1;
  ParallelFor(samples * outputs, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const A* sample = x + i / outputs * g.input_pixels() * g.C;
      A* sample_columns = columns + i / outputs * ColumnsPerSample(g);
      for (int64_t j = 0; j < at.offset_groups * taps; ++j) {
        const int64_t entry = i * at.offset_groups * taps + j;
        const bool inside = at.cells[entry] >= 0;
        const Cell cell(g, std::max(at.cells[entry], 0));
        for (int64_t r = 0; r < runs.per_offset_group; ++r) {
          const int64_t c =
              (j / taps * runs.per_offset_group + r) * runs.length;
          A* to = sample_columns + InColumn(g, i % outputs, j % taps, c);
          if (!inside) {
            std::fill_n(to, runs.length, A{0});
            continue;
          }
          const A* from[4];
          for (int k = 0; k < 4; ++k) {
            from[k] = cell.pixel[k] < 0 ? outside.data()
                                        : sample + cell.pixel[k] * g.C + c;
          }
          Blend(from[0], from[1], from[2], from[3], at.corners + 4 * entry, to,
                runs.length);
        }
      }
    }
  });
}

// A task owns the channels of a block in one sample, so that no two threads
// add to the same number. Every sum has its order from the loops over outputs,
// taps and corners, whatever the block.
template <typename A>
void ScatterColumns(const ConvGeometry& g, const Sampling<A>& at,
                    int64_t samples, const A* columns, A* dx) {
  const Runs runs(g, at.offset_groups);
  const int64_t outputs = g.output_pixels(), taps = g.taps();
  const int64_t block = std::min<int64_t>(runs.length, 64);
  const int64_t blocks_per_run = (runs.length + block - 1) / block;
  const int64_t blocks = g.C / runs.length * blocks_per_run;
  const int64_t grain =
      kTaskBytes / (outputs * taps * block * int64_t{sizeof(A)}) + 1;
  ParallelFor(samples * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / blocks, run = i % blocks / blocks_per_run;
      const int64_t in_run = i % blocks_per_run * block;
      const int64_t c = run * runs.length + in_run;
      const int64_t width = std::min(block, runs.length - in_run);
      A* to = dx + n * g.input_pixels() * g.C + c;
      for (int64_t pixel = 0; pixel < g.input_pixels(); ++pixel) {
        std::fill_n(to + pixel * g.C, width, A{0});
      }
      const A* from = columns + n * ColumnsPerSample(g);
      const int64_t offset_group = run / runs.per_offset_group;
      for (int64_t output = 0; output < outputs; ++output) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t entry =
              ((n * outputs + output) * at.offset_groups + offset_group) *
                  taps +
              tap;
          if (at.cells[entry] < 0) continue;
          const Cell cell(g, at.cells[entry]);
          const A* column = from + InColumn(g, output, tap, c);
          for (int k = 0; k < 4; ++k) {
            if (cell.pixel[k] < 0) continue;
            AddScaled(at.corners[4 * entry + k], column,
                      to + cell.pixel[k] * g.C, width);
          }
        }
      }
    }
  });
}

template <typename A>
void CornerGrads(const ConvGeometry& g, const Sampling<A>& at, int64_t samples,
                 const A* columns, const A* x, A* dcorners) {
  const Runs runs(g, at.offset_groups);
  const int64_t outputs = g.output_pixels(), taps = g.taps();
  const int64_t grain = kTaskBytes / (taps * g.C * int64_t{sizeof(A)}) + 1;
  ParallelFor(samples * outputs, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const A* sample = x + i / outputs * g.input_pixels() * g.C;
      const A* sample_columns = columns + i / outputs * ColumnsPerSample(g);
      for (int64_t j = 0; j < at.offset_groups * taps; ++j) {
        const int64_t entry = i * at.offset_groups * taps + j;
        A* to = dcorners + 4 * entry;
        std::fill_n(to, 4, A{0});
        if (at.cells[entry] < 0) continue;
        const Cell cell(g, at.cells[entry]);
        for (int k = 0; k < 4; ++k) {
          if (cell.pixel[k] < 0) continue;
          A lanes[kLanes] = {};
          for (int64_t r = 0; r < runs.per_offset_group; ++r) {
            const int64_t c =
                (j / taps * runs.per_offset_group + r) * runs.length;
            AddProducts(sample + cell.pixel[k] * g.C + c,
                        sample_columns + InColumn(g, i % outputs, j % taps, c),
                        runs.length, lanes);
          }
          to[k] = Total(lanes);
        }
      }
    }
  });
}

#define JCB_INSTANTIATE(A)                                                    \
  template void SampleColumns(const ConvGeometry&, const Sampling<A>&,        \
                              int64_t, const A*, A*);                         \
  template void ScatterColumns(const ConvGeometry&, const Sampling<A>&,       \
                               int64_t, const A*, A*);                        \
  template void CornerGrads(const ConvGeometry&, const Sampling<A>&, int64_t, \
                            const A*, const A*, A*);
JCB_INSTANTIATE(float)
JCB_INSTANTIATE(double)
#undef JCB_INSTANTIATE

}  // namespace jax_convbatch
