// SPDX-License-Identifier: Apache-2.0
// Random convolutions of whole numbers by implicit_gemm, on every instruction
// set of this processor, against the definition. Every buffer ends where its
// numbers end, so that a sanitizer sees what is read or written past them.
//
//   fuzz_implicit [seconds [threads]]
//
// With several threads, each runs problems of its own at the same time.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "conv_geometry.h"
#include "cpu/half.h"
#include "cpu/implicit/forward.h"
#include "cpu/implicit/kernels.h"
#include "cpu/implicit/wgrad.h"

using namespace jax_convbatch;

namespace {

int64_t Outputs(int64_t in, int64_t taps, int64_t stride, int64_t low,
                int64_t high, int64_t in_dilation, int64_t f_dilation) {
  const int64_t padded = (in - 1) * in_dilation + 1 + low + high;
  const int64_t window = (taps - 1) * f_dilation + 1;
  return padded < window ? 0 : (padded - window) / stride + 1;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t In(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  // Small mostly, sometimes larger than a tile, a panel or a block.
  int64_t Channels() {
    const int64_t kind = In(0, 11);
    return kind == 0   ? 4 * In(65, 150)
           : kind <= 2 ? In(17, 70)
           : kind <= 4 ? 16 * In(1, 4)
                       : In(1, 9);
  }

 private:
  std::mt19937_64 engine_;
};

ConvGeometry RandomGeometry(Random& random) {
  for (;;) {
    ConvGeometry g;
    const int64_t rank = random.In(1, 3);
    g.N = random.In(1, 3);
    g.groups = random.In(0, 2) == 0 ? random.In(1, 20) : 1;
    // Few channels have kernels of their own, some the same number in and out.
    const int64_t kind = random.In(0, g.groups > 1 ? 3 : 2);
    const int64_t same = int64_t{1} << random.In(0, 3);
    const bool few = kind == 1, direct = kind > 1 && g.groups > 1;
    if (few && random.In(0, 1) == 0) g.groups = random.In(1, 4);
    const auto channels = [&] {
      return direct ? same : few ? random.In(1, 4) : random.Channels();
    };
    g.C = g.groups * channels();
    g.K = g.groups * channels();
    const bool flat = random.In(0, 9) == 0;
    int64_t* sizes[3][4] = {{&g.D, &g.T, &g.O, nullptr},
                            {&g.H, &g.R, &g.P, nullptr},
                            {&g.W, &g.S, &g.Q, nullptr}};
    for (int axis = 0; axis < 3; ++axis) {
      int64_t &in = *sizes[axis][0], &taps = *sizes[axis][1];
      const bool there = axis >= 3 - rank && !(flat && axis == 2);
      in = there ? random.In(1, axis < 2 ? 7 : few ? 300 : 24) : 1;
      taps = there ? random.In(1, 4) : 1;
      const int64_t stride = there ? random.In(1, 3) : 1;
      const int64_t dilation =
          there && random.In(0, 2) == 0 ? random.In(1, 3) : 1;
      const int64_t f_dilation = there ? random.In(1, 2) : 1;
      const int64_t low = there ? random.In(-2, 4) : 0;
      const int64_t high = there ? random.In(-2, 4) : 0;
      *sizes[axis][2] =
          Outputs(in, taps, stride, low, high, dilation, f_dilation);
      int64_t Axes::* member = axis == 0   ? &Axes::d
                               : axis == 1 ? &Axes::h
                                           : &Axes::w;
      g.stride.*member = stride;
      g.pad.*member = low;
      g.input_dilation.*member = dilation;
      g.filter_dilation.*member = f_dilation;
    }
    const int64_t work = g.y_size() * g.column_size();
    if (work > 0 && work < 4000000) return g;
  }
}

// A filter whose panels are made while others are multiplied: they do not fit
// at once, and there are many rows.
ConvGeometry LargeFilter() {
  ConvGeometry g{};
  g.N = 5, g.D = g.H = 1, g.W = 46, g.C = 600, g.K = 512;
  g.T = g.R = 1, g.S = 2, g.O = g.P = 1, g.Q = 46, g.groups = 1;
  g.stride = g.input_dilation = g.filter_dilation = {1, 1, 1};
  g.pad.w = 1;
  return g;
}

// Calls body(x, w, y) with the indices of every product of the convolution.
template <typename Body>
void ForEachProduct(const ConvGeometry& g, Body body) {
  const int64_t gc = g.group_C(), gk = g.group_K();
  auto input = [](int64_t at, int64_t dilation, int64_t size) {
    return at < 0 || at % dilation || at / dilation >= size ? -1
                                                            : at / dilation;
  };
  for (int64_t n = 0; n < g.N; ++n)
    for (int64_t o = 0; o < g.O; ++o)
      for (int64_t p = 0; p < g.P; ++p)
        for (int64_t q = 0; q < g.Q; ++q)
          for (int64_t t = 0; t < g.T; ++t)
            for (int64_t r = 0; r < g.R; ++r)
              for (int64_t s = 0; s < g.S; ++s) {
                const int64_t d =
                    input(o * g.stride.d - g.pad.d + t * g.filter_dilation.d,
                          g.input_dilation.d, g.D);
                const int64_t h =
                    input(p * g.stride.h - g.pad.h + r * g.filter_dilation.h,
                          g.input_dilation.h, g.H);
                const int64_t w =
                    input(q * g.stride.w - g.pad.w + s * g.filter_dilation.w,
                          g.input_dilation.w, g.W);
                if (d < 0 || h < 0 || w < 0) continue;
                const int64_t x = (((n * g.D + d) * g.H + h) * g.W + w) * g.C;
                const int64_t f = ((t * g.R + r) * g.S + s) * gc * g.K;
                const int64_t y = (((n * g.O + o) * g.P + p) * g.Q + q) * g.K;
                for (int64_t c = 0; c < gc; ++c)
                  for (int64_t k = 0; k < g.K; ++k)
                    body(x + k / gk * gc + c, f + c * g.K + k, y + k);
              }
}

// std::vector, but starting where a vector register may be stored.
template <typename T>
struct Aligned {
  using value_type = T;
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* at, size_t) {
    ::operator delete(at, std::align_val_t(64));
  }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};

// An array that ends where its memory ends, in its own type.
template <typename T>
class Array {
 public:
  explicit Array(int64_t size) : data_(size) {}
  explicit Array(const std::vector<int>& numbers) : data_(numbers.size()) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      data_[i] = FromCompute<T>(static_cast<Compute<T>>(numbers[i]));
    }
  }
  T* data() { return data_.data(); }
  // Everything is overwritten: what stays is this.
  void Poison() { std::memset(data_.data(), 0xff, data_.size() * sizeof(T)); }
  bool Is(const std::vector<int64_t>& right, const char* what) {
    for (size_t i = 0; i < right.size(); ++i) {
      const double got = ToCompute(data_[i]);
      if (got != static_cast<double>(right[i])) {
        std::printf("%s[%zu] is %g, not %lld\n", what, i, got,
                    static_cast<long long>(right[i]));
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<T, Aligned<T>> data_;
};

template <typename T>
constexpr Element kElement = std::is_same_v<T, double>     ? Element::kF64
                             : std::is_same_v<T, float>    ? Element::kF32
                             : std::is_same_v<T, BFloat16> ? Element::kBF16
                                                           : Element::kF16;

struct Numbers {
  std::vector<int> x, w, dy;
  std::vector<int64_t> y, dx, dw;
};

template <typename T>
bool Check(const ConvGeometry& g, const Numbers& n, int64_t parts) {
  using A = Compute<T>;
  constexpr Element type = kElement<T>;
  Array<T> x(n.x), w(n.w), dy(n.dy);
  Array<T> y(n.y.size()), dx(n.dx.size()), dw(n.dw.size());
  Array<A> sums(parts * g.w_size());
  y.Poison(), dx.Poison(), dw.Poison(), sums.Poison();
  // Streamed where the numbers happen to be aligned.
  const int64_t least = parts == 1 ? 0 : int64_t{1} << 40;
  Forward{g, false, x.data(), w.data(), type, y.data(), type, least}.Run<A>();
  Forward{g, true, dy.data(), w.data(), type, dx.data(), type, least}.Run<A>();
  Wgrad{g, x.data(), dy.data(), dw.data(), type, parts, sums.data()}.Run<A>();
  bool right = y.Is(n.y, "y") && dx.Is(n.dx, "dx") && dw.Is(n.dw, "dw");
  dw.Poison();
  Wgrad{g, x.data(), dy.data(), dw.data(), type, parts, nullptr}.Run<A>();
  return right && dw.Is(n.dw, "dw without workspace");
}

bool CheckOne(uint64_t seed) {
  Random random(seed);
  const ConvGeometry g = seed == 0 ? LargeFilter() : RandomGeometry(random);
  // -1, 0 and 1 and not all of them, so that every sum is exact in 16 bits.
  auto draw = [&](int64_t size) {
    std::vector<int> numbers(size);
    for (int& number : numbers) {
      number = random.In(0, 9) < 3 ? static_cast<int>(random.In(-1, 1)) : 0;
    }
    return numbers;
  };
  Numbers n{draw(g.x_size()), draw(g.w_size()), draw(g.y_size()), {}, {}, {}};
  n.y.resize(g.y_size()), n.dx.resize(g.x_size()), n.dw.resize(g.w_size());
  ForEachProduct(g, [&](int64_t x, int64_t w, int64_t y) {
    n.y[y] += n.x[x] * n.w[w];
    n.dx[x] += n.dy[y] * n.w[w];
    n.dw[w] += n.x[x] * n.dy[y];
  });
  for (auto* sums : {&n.y, &n.dx, &n.dw}) {
    for (int64_t sum : *sums) {
      if (std::abs(sum) > 256) return true;  // bf16 has 8 bits
    }
  }
  const int64_t parts = random.In(1, 3);
  bool right = Check<float>(g, n, parts);
  if (seed > 0) {  // which is large, and for native types
    right = right && Check<double>(g, n, parts) && Check<Half>(g, n, parts) &&
            Check<BFloat16>(g, n, parts);
  }
  if (!right) {
    std::printf(
        "%s, problem %llu: N %lld, x %lldx%lldx%lldx%lld, w "
        "%lldx%lldx%lldx%lld, "
        "groups %lld, stride %lld %lld %lld, pad %lld %lld %lld, dilation %lld "
        "%lld %lld, %lld %lld %lld, parts %lld\n",
        InstructionSet(), (unsigned long long)seed, (long long)g.N,
        (long long)g.D, (long long)g.H, (long long)g.W, (long long)g.C,
        (long long)g.T, (long long)g.R, (long long)g.S, (long long)g.K,
        (long long)g.groups, (long long)g.stride.d, (long long)g.stride.h,
        (long long)g.stride.w, (long long)g.pad.d, (long long)g.pad.h,
        (long long)g.pad.w, (long long)g.input_dilation.d,
        (long long)g.input_dilation.h, (long long)g.input_dilation.w,
        (long long)g.filter_dilation.d, (long long)g.filter_dilation.h,
        (long long)g.filter_dilation.w, (long long)parts);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  int tried = 0;
  for (const char* isa : {"avx512", "avx2", "portable"}) {
    setenv("JAX_CONVBATCH_ISA", isa, 1);
    if (const char* problem = ChooseKernels()) {
      std::printf("%s: %s\n", isa, problem);
      continue;
    }
    ++tried;
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(seconds / 3);
    std::vector<std::thread> pool;
    std::vector<int> failures(threads), problems(threads);
    for (int t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        for (uint64_t i = 0; std::chrono::steady_clock::now() < end; ++i) {
          ++problems[t];
          if (!CheckOne(i * threads + t) && ++failures[t] == 3) return;
        }
      });
    }
    int failed = 0, run = 0;
    for (int t = 0; t < threads; ++t) {
      pool[t].join();
      failed += failures[t], run += problems[t];
    }
    std::printf("%s: %d problems, %d wrong\n", isa, run, failed);
    if (failed || run == 0) return 1;
  }
  return tried ? 0 : 1;
}
