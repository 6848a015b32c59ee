// SPDX-License-Identifier: Apache-2.0
#include "columns.h"

#include <algorithm>
#include <numeric>

namespace jax_convbatch {
namespace {

// Runs of fewer columns are packed, several to a block: where they could be
// read where they lie, and where they are converted anyhow.
constexpr int64_t kShortRun = 16, kShortConverted = 128;

// What is left of `a` modulo `b`, from 0 to b - 1.
int64_t Residue(int64_t a, int64_t b) { return (a % b + b) % b; }

}  // namespace

std::vector<AxisClass> AxisRule::Classes() const {
  const int64_t common = std::gcd(numerator, denominator);
  const int64_t period = denominator / common;
  std::vector<AxisClass> classes;
  for (int64_t first = 0; first < std::min(period, places); ++first) {
    AxisClass c;
    c.first = first;
    c.period = period;
    c.count = (places - first + period - 1) / period;
    c.step = numerator / common;
    for (int64_t i = 0; i < taps; ++i) {
      // Ascending offsets, whichever way the taps go.
      const int64_t t = tap_step > 0 ? i : taps - 1 - i;
      const int64_t at = first * numerator + shift + t * tap_step;
      if (Residue(at, denominator) != 0) continue;
      c.taps.push_back(t);
      c.offsets.push_back(at / denominator);
    }
    c.adjacent = true;
    for (size_t i = 1; i < c.offsets.size(); ++i) {
      c.adjacent = c.adjacent && c.offsets[i] == c.offsets[i - 1] + 1;
    }
    classes.push_back(c);
  }
  return classes;
}

Reading FpropReading(const ConvGeometry& g) {
  const Axes &s = g.stride, &i = g.input_dilation, &f = g.filter_dilation;
  return {AxisRule{g.O, g.D, g.T, s.d, i.d, -g.pad.d, f.d}.Classes(),
          AxisRule{g.P, g.H, g.R, s.h, i.h, -g.pad.h, f.h}.Classes(),
          AxisRule{g.Q, g.W, g.S, s.w, i.w, -g.pad.w, f.w}.Classes(),
          g.N,
          {g.O, g.P, g.Q},
          {g.D, g.H, g.W},
          g.R,
          g.S,
          g.C,
          g.group_C()};
}

Reading DgradReading(const ConvGeometry& g) {
  const Axes &s = g.stride, &i = g.input_dilation, &f = g.filter_dilation;
  return {AxisRule{g.D, g.O, g.T, i.d, s.d, g.pad.d, -f.d}.Classes(),
          AxisRule{g.H, g.P, g.R, i.h, s.h, g.pad.h, -f.h}.Classes(),
          AxisRule{g.W, g.Q, g.S, i.w, s.w, g.pad.w, -f.w}.Classes(),
          g.N,
          {g.D, g.H, g.W},
          {g.O, g.P, g.Q},
          g.R,
          g.S,
          g.K,
          g.group_K()};
}

Columns::Columns(const Reading& reading, int64_t index, int64_t group)
    : reading_(reading),
      d_(reading.d[index / (reading.h.size() * reading.w.size())]),
      h_(reading.h[index / reading.w.size() % reading.h.size()]),
      w_(reading.w[index % reading.w.size()]),
      group_(group),
      channels_(reading.group_channels),
      rows_(reading.samples * d_.count * h_.count * w_.count),
      taps_(d_.taps.size() * h_.taps.size() * w_.taps.size()) {
  const bool merges = channels_ == reading.channels && w_.adjacent;
  run_taps_ = merges ? static_cast<int64_t>(w_.taps.size()) : 1;
  run_ = run_taps_ * channels_;
}

int64_t Columns::FilterTap(int64_t tap) const {
  const int64_t across = w_.taps.size(), down = h_.taps.size();
  const int64_t t = d_.taps[tap / (across * down)];
  const int64_t r = h_.taps[tap / across % down];
  return (t * reading_.R + r) * reading_.S + w_.taps[tap % across];
}

Columns::Position Columns::At(int64_t row) const {
  Position at;
  at.w = row % w_.count;
  row /= w_.count;
  at.h = row % h_.count;
  row /= h_.count;
  at.d = row % d_.count;
  at.n = row / d_.count;
  return at;
}

void Columns::Advance(Position* at, int64_t rows) const {
  for (at->w += rows; at->w >= w_.count;) {
    at->w -= w_.count;
    if (++at->h < h_.count) continue;
    at->h = 0;
    if (++at->d < d_.count) continue;
    at->d = 0;
    ++at->n;
  }
}

void Columns::Places(Position at, int64_t count, int64_t* places) const {
  const Axes& size = reading_.places;
  while (count > 0) {
    const int64_t some = std::min(count, w_.count - at.w);
    const int64_t d = d_.first + at.d * d_.period;
    const int64_t h = h_.first + at.h * h_.period;
    const int64_t w = w_.first + at.w * w_.period;
    const int64_t first = ((at.n * size.d + d) * size.h + h) * size.w + w;
    for (int64_t i = 0; i < some; ++i) *places++ = first + i * w_.period;
    count -= some;
    Advance(&at, some);
  }
}

std::vector<ColumnBlock> Columns::Blocks(Element type) const {
  const bool converted = type != Element::kF32 && type != Element::kF64;
  const bool together = run_ < (converted ? kShortConverted : kShortRun);
  // Otherwise nearly equal parts of a run, of whole cache lines.
  const int64_t parts =
      std::max<int64_t>(1, (run_ + kBlockDepth - 1) / kBlockDepth);
  const int64_t part = (run_ + 16 * parts - 1) / (16 * parts) * 16;
  std::vector<ColumnBlock> blocks;
  for (int64_t begin = 0; begin < depth(); begin = blocks.back().end) {
    const int64_t from = begin % run_;
    const int64_t end =
        together ? std::min(depth(), begin + kBlockDepth / run_ * run_)
                 : begin + std::min(part, run_ - from);
    const Offsets tap = OffsetsOf(begin / run_ * run_taps_);
    blocks.push_back({begin, end, from, tap.d, tap.h, tap.w});
  }
  return blocks;
}

Columns::Offsets Columns::OffsetsOf(int64_t tap) const {
  const int64_t across = w_.taps.size(), down = h_.taps.size();
  return {d_.offsets[tap / (across * down)], h_.offsets[tap / across % down],
          w_.offsets[tap % across]};
}

// Columns [from, until) of the run whose first tap has these offsets, in the
// row of `at`: what the image holds of it, between zeros.
inline Run Columns::RunOf(const Position& at, const Offsets& tap,
                          const char* data, int64_t element, int64_t from,
                          int64_t until) const {
  const Axes& size = reading_.pixels;
  const int64_t d = at.d * d_.step + tap.d, h = at.h * h_.step + tap.h;
  const int64_t w = at.w * w_.step + tap.w;
  int64_t low = from, high = until;
  if (w < 0) low = std::max(from, -w * channels_);
  if (w + run_taps_ > size.w) high = std::min(until, (size.w - w) * channels_);
  if (d < 0 || d >= size.d || h < 0 || h >= size.h || low >= high) {
    return {nullptr, static_cast<int32_t>(until - from), 0, 0};
  }
  const int64_t pixel = ((at.n * size.d + d) * size.h + h) * size.w + w;
  const int64_t first = group_ * channels_ + pixel * reading_.channels + low;
  return {data + first * element, static_cast<int32_t>(low - from),
          static_cast<int32_t>(high - low), static_cast<int32_t>(until - high)};
}

template <typename A>
void Columns::Pack(const void* image, Element type, const Position& at,
                   int64_t count, int64_t begin, int64_t end, A* to) const {
  const char* data = static_cast<const char*>(image);
  Position rows[kBlockDepth];
  rows[0] = at;
  for (int64_t i = 1; i < count; ++i) {
    rows[i] = rows[i - 1];
    Advance(&rows[i], 1);
  }
  Run runs[kBlockDepth];
  for (int64_t k = begin; k < end;) {
    const int64_t from = k % run_, until = std::min(run_, from + end - k);
    const Offsets tap = OffsetsOf(k / run_ * run_taps_);
    for (int64_t i = 0; i < count; ++i) {
      runs[i] = RunOf(rows[i], tap, data, ElementSize(type), from, until);
    }
    ChosenKernels<A>().pack_runs(type, runs, count, to + (k - begin));
    k += until - from;
  }
}

template <typename A>
void Columns::Point(const void* image, Element type, const Position& start,
                    int64_t count, const ColumnBlock& block, A* to,
                    const A** rows) const {
  const int64_t depth = block.end - block.begin;
  if (type != kNative<A> || block.from + depth > run_) {
    Pack(image, type, start, count, block.begin, block.end, to);
    for (int64_t i = 0; i < count; ++i) rows[i] = to + i * kRowLength;
    return;
  }
  static const A zeros[kBlockDepth] = {};
  const char* data = static_cast<const char*>(image);
  const Offsets tap{block.d, block.h, block.w};
  const Axes& size = reading_.pixels;
  Position at = start;
  // Rows that share everything but w.
  for (int64_t i = 0; i < count;) {
    const int64_t some = std::min(count - i, w_.count - at.w);
    const int64_t d = at.d * d_.step + tap.d, h = at.h * h_.step + tap.h;
    if (d < 0 || d >= size.d || h < 0 || h >= size.h) {
      std::fill_n(rows + i, some, zeros);
    } else {
      const int64_t w = at.w * w_.step + tap.w, last = size.w - run_taps_;
      const int64_t pixel = ((at.n * size.d + d) * size.h + h) * size.w + w;
      const A* from = reinterpret_cast<const A*>(data) + group_ * channels_ +
                      block.from + pixel * reading_.channels;
      for (int64_t j = 0; j < some; ++j) {
        rows[i + j] = from + j * w_.step * reading_.channels;
      }
      const auto pack = [&](int64_t j) {
        Position edge = at;
        edge.w += j;
        const Run run =
            RunOf(edge, tap, data, sizeof(A), block.from, block.from + depth);
        rows[i + j] = to + (i + j) * kRowLength;
        ChosenKernels<A>().pack_runs(type, &run, 1, to + (i + j) * kRowLength);
      };
      int64_t j = 0;
      for (; j < some && w + j * w_.step < 0; ++j) pack(j);
      for (int64_t end = some; end > j && w + (end - 1) * w_.step > last; --end)
        pack(end - 1);
    }
    i += some;
    Advance(&at, some);
  }
}

int64_t Columns::unit_taps() const {
  return channels_ < kShortRun ? run_taps_ : 1;
}

template <typename A>
int Columns::Lines(const void* image, Position at, int64_t count, int64_t k,
                   A* to, Line<A>* lines) const {
  const int64_t taps = unit_taps();
  const Offsets tap = OffsetsOf(k / unit() * taps);
  const Axes& size = reading_.pixels;
  int made = 0;
  for (int64_t i = 0; i < count;) {
    const int64_t some = std::min(count - i, w_.count - at.w);
    const int64_t d = at.d * d_.step + tap.d, h = at.h * h_.step + tap.h;
    const int64_t w = at.w * w_.step + tap.w;
    const bool inside = d >= 0 && d < size.d && h >= 0 && h < size.h;
    // The first of these places that reads this pixel or one behind it.
    const auto place = [&](int64_t pixel) {
      const int64_t ahead = pixel - w;
      return ahead <= 0 || !inside
                 ? 0
                 : std::min(some, (ahead + w_.step - 1) / w_.step);
    };
    // From where on places read something; all they read; not all; nothing.
    const int64_t something = place(1 - taps), all = place(0);
    const int64_t not_all = std::max(all, place(size.w - taps + 1));
    const int64_t nothing = std::max(not_all, place(size.w));
    const auto padding = [&](int64_t from, int64_t until) {
      if (until > from) lines[made++] = {nullptr, 0, i + from, until - from};
    };
    const auto pack = [&](int64_t from, int64_t until) {
      if (until <= from) return;
      lines[made++] = {to, kRowLength, i + from, until - from};
      for (int64_t j = from; j < until; ++j, to += kRowLength) {
        Position edge = at;
        edge.w += j;
        const Run run = RunOf(edge, tap, static_cast<const char*>(image),
                              sizeof(A), 0, unit());
        ChosenKernels<A>().pack_runs(kNative<A>, &run, 1, to);
      }
    };
    padding(0, something);
    pack(something, all);
    if (not_all > all) {
      const int64_t pixel =
          ((at.n * size.d + d) * size.h + h) * size.w + w + all * w_.step;
      lines[made++] = {static_cast<const A*>(image) +
                           pixel * reading_.channels + group_ * channels_,
                       step(), i + all, not_all - all};
    }
    pack(not_all, nothing);
    padding(nothing, some);
    i += some;
    Advance(&at, some);
  }
  return made;
}

Ahead Columns::New(const void* image, Element type, Position at,
                   int64_t count) const {
  Ahead ahead;
  const Axes& size = reading_.pixels;
  const int64_t bytes = reading_.channels * ElementSize(type);
  const char* data = static_cast<const char*>(image);
  while (count > 0 && at.n < reading_.samples) {
    const int64_t some = std::min(count, w_.count - at.w);
    const int64_t d = at.d * d_.step + d_.offsets.back();
    const int64_t wide = w_.offsets.back() + 1 - w_.offsets.front();
    for (auto tap = h_.offsets.rbegin();
         tap != h_.offsets.rend() && *tap > h_.offsets.back() - h_.step;
         ++tap) {
      const int64_t h = at.h * h_.step + *tap;
      if (d < 0 || d >= size.d || h < 0 || h >= size.h) continue;
      const int64_t row = ((at.n * size.d + d) * size.h + h) * size.w;
      const auto add = [&](int64_t w, int64_t pixels) {
        const int64_t low = std::max<int64_t>(w + w_.offsets.front(), 0);
        const int64_t high = std::min(w + w_.offsets.front() + pixels, size.w);
        ahead.Add(data + (row + low) * bytes, (high - low) * bytes);
      };
      // Apart, where there are pixels between them that nobody reads.
      const int64_t w = at.w * w_.step;
      if (wide >= w_.step) {
        add(w, (some - 1) * w_.step + wide);
      } else {
        for (int64_t i = 0; i < some; ++i) add(w + i * w_.step, wide);
      }
    }
    count -= some;
    Advance(&at, some);
  }
  return ahead;
}

Ahead Columns::All(const void* image, Element type, Position at, int64_t count,
                   int64_t begin, int64_t end) const {
  Ahead ahead;
  const int64_t element = ElementSize(type);
  for (int64_t k = begin; k < end;) {
    const int64_t from = k % run_, until = std::min(run_, from + end - k);
    const Offsets tap = OffsetsOf(k / run_ * run_taps_);
    Position row = at;
    for (int64_t i = 0; i < count && row.n < reading_.samples; ++i) {
      const Run run = RunOf(row, tap, static_cast<const char*>(image), element,
                            from, until);
      ahead.Add(run.from, run.count * element);
      Advance(&row, 1);
    }
    k += until - from;
  }
  return ahead;
}

template int Columns::Lines(const void*, Position, int64_t, int64_t, float*,
                            Line<float>*) const;
template int Columns::Lines(const void*, Position, int64_t, int64_t, double*,
                            Line<double>*) const;
template void Columns::Pack(const void*, Element, const Position&, int64_t,
                            int64_t, int64_t, float*) const;
template void Columns::Pack(const void*, Element, const Position&, int64_t,
                            int64_t, int64_t, double*) const;
template void Columns::Point(const void*, Element, const Position&, int64_t,
                             const ColumnBlock&, float*, const float**) const;
template void Columns::Point(const void*, Element, const Position&, int64_t,
                             const ColumnBlock&, double*, const double**) const;

}  // namespace jax_convbatch
