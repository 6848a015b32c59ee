// Check and timing of the Hopper paths on a GPU, without Python. From the root:
//   for f in fprop dgrad wgrad fprop_tf32 dgrad_tf32 wgrad_tf32 gather_conv \
//       gather_wgrad strip_fprop strip_wgrad sweep resize; do
//     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -Iffi -c \
//       ffi/cuda/hopper/$f.cu -o /tmp/$f.o; done
//   nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -Iffi \
//     -cudart static -o few_channels tests/native/few_channels.cu /tmp/*.o \
//     ffi/cuda/hopper/*.cc
//   ./few_channels check; ./few_channels fuzz 500 1; ./few_channels time
//   ./few_channels few      (copies, strips and sweeps, where several can)
//   ./few_channels one I    (one case of `check`, for compute-sanitizer)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/hopper/paths.h"
#include "cuda/hopper/strip_plan.h"
#include "cuda/hopper/sweep_plan.h"

using namespace jax_convbatch;
using namespace jax_convbatch::hopper;

#define CK(x)                                          \
  do {                                                 \
    cudaError_t err_ = (x);                            \
    if (err_ != cudaSuccess) {                         \
      printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, \
             cudaGetErrorString(err_));                \
      exit(1);                                         \
    }                                                  \
  } while (0)

using bf16 = __nv_bfloat16;

template <typename T>
__global__ void Fill(T* p, int64_t n, uint32_t seed, int ints) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  for (; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    float v = ints ? float(int(z % 5) - 2)
                   : (float(z & 0xFFFFFF) / 8388608.0f - 1.0f);
    p[i] = T(v);
  }
}

template <typename T>
__global__ void NaiveFprop(ConvGeometry g, const T* x, const T* w, T* y) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= g.N * g.P * g.Q * g.K) return;
  int64_t k = i % g.K, q = i / g.K % g.Q, p = i / g.K / g.Q % g.P,
          n = i / g.K / g.Q / g.P;
  double sum = 0;
  for (int r = 0; r < g.R; ++r)
    for (int s = 0; s < g.S; ++s) {
      int64_t h = p * g.stride.h - g.pad.h + r * g.filter_dilation.h;
      int64_t v = q * g.stride.w - g.pad.w + s * g.filter_dilation.w;
      if (h < 0 || h >= g.H || v < 0 || v >= g.W) continue;
      const T* xp = x + ((n * g.H + h) * g.W + v) * g.C;
      const T* wp = w + ((r * g.S + s) * g.C) * g.K + k;
      float part = 0;
      for (int c = 0; c < g.C; ++c) part += float(xp[c]) * float(wp[c * g.K]);
      sum += part;
    }
  y[i] = T(float(sum));
}

template <typename T>
__global__ void NaiveDgrad(ConvGeometry g, const T* dy, const T* w, T* dx) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= g.N * g.H * g.W * g.C) return;
  int64_t c = i % g.C, v = i / g.C % g.W, h = i / g.C / g.W % g.H,
          n = i / g.C / g.W / g.H;
  double sum = 0;
  for (int r = 0; r < g.R; ++r)
    for (int s = 0; s < g.S; ++s) {
      int64_t p = h + g.pad.h - r * g.filter_dilation.h;
      int64_t q = v + g.pad.w - s * g.filter_dilation.w;
      if (p < 0 || q < 0 || p % g.stride.h || q % g.stride.w) continue;
      p /= g.stride.h, q /= g.stride.w;
      if (p >= g.P || q >= g.Q) continue;
      const T* yp = dy + ((n * g.P + p) * g.Q + q) * g.K;
      const T* wp = w + ((r * g.S + s) * g.C + c) * g.K;
      float part = 0;
      for (int k = 0; k < g.K; ++k) part += float(yp[k]) * float(wp[k]);
      sum += part;
    }
  dx[i] = T(float(sum));
}

// One block an element row of 1 output: sum over pixels.
template <typename T>
__global__ void NaiveWgrad(ConvGeometry g, const T* x, const T* dy, T* dw) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= g.R * g.S * g.C * g.K) return;
  int64_t k = i % g.K, c = i / g.K % g.C, s = i / g.K / g.C % g.S,
          r = i / g.K / g.C / g.S;
  double sum = 0;
  for (int64_t n = 0; n < g.N; ++n)
    for (int64_t p = 0; p < g.P; ++p)
      for (int64_t q = 0; q < g.Q; ++q) {
        int64_t h = p * g.stride.h - g.pad.h + r * g.filter_dilation.h;
        int64_t v = q * g.stride.w - g.pad.w + s * g.filter_dilation.w;
        if (h < 0 || h >= g.H || v < 0 || v >= g.W) continue;
        sum += double(float(x[((n * g.H + h) * g.W + v) * g.C + c])) *
               double(float(dy[((n * g.P + p) * g.Q + q) * g.K + k]));
      }
  dw[i] = T(float(sum));
}

template <typename T>
__global__ void Compare(const T* a, const T* b, int64_t n, double* out) {
  // out: sum of squares of the difference, of b, count of differing bits, nan
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  double d2 = 0, b2 = 0, bad = 0, nan = 0;
  for (; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    float u = a[i], v = b[i];
    if (!(u == u)) {
      nan += 1;
      continue;
    }
    if (u != v) bad += 1;
    d2 += double(u - v) * (u - v);
    b2 += double(v) * v;
  }
  atomicAdd(out, d2);
  atomicAdd(out + 1, b2);
  atomicAdd(out + 2, bad);
  atomicAdd(out + 3, nan);
}

static int g_sms = 132;

static ConvGeometry Geo(int64_t N, int64_t H, int64_t W, int64_t C, int64_t K,
                        int64_t R, int64_t S, int64_t st, int64_t dil,
                        int64_t pl, int64_t ph, int64_t pwl = -100,
                        int64_t pwh = -100) {
  ConvGeometry g{};
  g.N = N, g.D = 1, g.H = H, g.W = W, g.C = C, g.K = K, g.T = 1, g.R = R,
  g.S = S;
  if (pwl == -100) pwl = pl, pwh = ph;
  g.O = 1;
  g.P = (H + pl + ph - (R - 1) * dil - 1) / st + 1;
  g.Q = (W + pwl + pwh - (S - 1) * dil - 1) / st + 1;
  g.groups = 1;
  g.stride = {1, st, st}, g.pad = {0, pl, pwl}, g.input_dilation = {1, 1, 1};
  g.filter_dilation = {1, dil, dil};
  return g;
}

template <typename F>
static double TimeGraph(F launch, int launches, int replays) {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) {
    cudaError_t e = launch(i, s);
    if (e != cudaSuccess) {
      cudaStreamEndCapture(s, &graph);
      cudaGetLastError();
      return -1;
    }
  }
  CK(cudaStreamEndCapture(s, &graph));
  CK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t b, e;
  cudaEventCreate(&b);
  cudaEventCreate(&e);
  CK(cudaGraphLaunch(exec, s));
  CK(cudaStreamSynchronize(s));
  std::vector<float> t;
  for (int i = 0; i < replays; ++i) {
    cudaEventRecord(b, s);
    CK(cudaGraphLaunch(exec, s));
    cudaEventRecord(e, s);
    CK(cudaStreamSynchronize(s));
    float ms;
    cudaEventElapsedTime(&ms, b, e);
    t.push_back(ms * 1000 / launches);
  }
  std::sort(t.begin(), t.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(s);
  cudaEventDestroy(b);
  cudaEventDestroy(e);
  return t[t.size() / 2];
}

static jax_convbatch::hopper::Op Op_(int op) {
  return static_cast<jax_convbatch::hopper::Op>(op);
}
static ConvGeometry Geo2(int64_t N, int64_t H, int64_t W, int64_t C, int64_t K,
                         int64_t R, int64_t S, int64_t sh, int64_t sw,
                         int64_t dh, int64_t dw, int64_t pt, int64_t pb,
                         int64_t pl, int64_t pr) {
  ConvGeometry g{};
  g.N = N, g.D = 1, g.H = H, g.W = W, g.C = C, g.K = K, g.T = 1, g.R = R,
  g.S = S;
  g.O = 1;
  g.P = (H + pt + pb - (R - 1) * dh - 1) / sh + 1;
  g.Q = (W + pl + pr - (S - 1) * dw - 1) / sw + 1;
  g.groups = 1;
  g.stride = {1, sh, sw}, g.pad = {0, pt, pl}, g.input_dilation = {1, 1, 1};
  g.filter_dilation = {1, dh, dw};
  return g;
}
template <typename T>
static cudaError_t Go(int op, const ConvGeometry& g, const Plan& p,
                      const void* a, const void* b, void* c, void* ws, Stage st,
                      cudaStream_t s) {
  Type t = std::is_same_v<T, bf16> ? Type::kBf16 : Type::kF16;
  ConvCall call{g, t, p, a, b, c, ws};
  return RunPath(Op_(op), call, g_sms, st, s);
}
static std::optional<Plan> PlanOf(int op, const ConvGeometry& g) {
  return PlanPath(Op_(op), g, Type::kBf16, g_sms);
}
static std::map<std::string, int> g_paths;
static bool g_quiet = false;
template <typename T>
static int CheckOne(const ConvGeometry& g, const char* label, int ops = 7) {
  int failures = 0;
  for (int op = 0; op < 3; ++op) {
    if (!(ops >> op & 1)) continue;
    auto plan = PlanOf(op, g);
    if (!plan) {
      if (!g_quiet) printf("%s op %d: no plan\n", label, op);
      g_paths["none" + std::to_string(op)]++;
      continue;
    }
    g_paths[std::to_string(int(plan->path)) + " op" + std::to_string(op)]++;
    int64_t na = op == 1 ? g.y_size() : g.x_size(),
            nb = op == 2 ? g.y_size() : g.w_size(),
            nc = op == 0   ? g.y_size()
                 : op == 1 ? g.x_size()
                           : g.w_size();
    T *a, *b, *c, *ref;
    char* ws;
    double* stat;
    CK(cudaMalloc(&a, na * 2));
    CK(cudaMalloc(&b, nb * 2));
    CK(cudaMalloc(&c, nc * 2 + 256));
    CK(cudaMalloc(&ref, nc * 2));
    CK(cudaMalloc(&ws, plan->workspace + 256));
    CK(cudaMalloc(&stat, 32));
    for (int ints = 0; ints < 2; ++ints) {
      Fill<T><<<1024, 256>>>(a, na, 1 + ints, ints);
      Fill<T><<<1024, 256>>>(b, nb, 7 + ints, ints);
      if (op == 0)
        NaiveFprop<T><<<(nc + 255) / 256, 256>>>(g, a, b, ref);
      else if (op == 1)
        NaiveDgrad<T><<<(nc + 255) / 256, 256>>>(g, a, b, ref);
      else
        NaiveWgrad<T><<<(nc + 255) / 256, 256>>>(g, a, b, ref);
      CK(cudaMemset(c, 0xFF, nc * 2 + 256));
      CK(cudaMemset(ws, 0xFF, plan->workspace + 256));
      CK(cudaDeviceSynchronize());
      cudaError_t e = Go<T>(op, g, *plan, a, b, c, ws, Stage::kPrepare, 0);
      if (e == cudaSuccess)
        e = Go<T>(op, g, *plan, a, b, c, ws, Stage::kLaunch, 0);
      if (e == cudaSuccess) e = cudaDeviceSynchronize();
      if (e != cudaSuccess) {
        printf("%s op %d: %s\n", label, op, cudaGetErrorString(e));
        CK(e);
      }
      CK(cudaMemset(stat, 0, 32));
      Compare<T><<<256, 256>>>(c, ref, nc, stat);
      double h[4];
      CK(cudaMemcpy(h, stat, 32, cudaMemcpyDeviceToHost));
      double err = std::sqrt(h[0] / std::max(h[1], 1e-30));
      bool bad = h[3] > 0 || (ints ? h[2] > 0 : !(err < 4e-3));
      unsigned char tail[256];
      CK(cudaMemcpy(tail, (char*)c + nc * 2, 256, cudaMemcpyDeviceToHost));
      bool over = false;
      for (int i = 0; i < 256; ++i)
        if (tail[i] != 0xFF) bad = over = true;
      CK(cudaMemcpy(tail, ws + plan->workspace, 256, cudaMemcpyDeviceToHost));
      for (int i = 0; i < 256; ++i)
        if (tail[i] != 0xFF) bad = over = true;
      if (bad) {
        ++failures;
        printf(
            "FAIL %s op %d gathers %d ints %d: err %.2e differ %.0f nan %.0f "
            "over %d of %lld\n",
            label, op, int(plan->path), ints, err, h[2], h[3], over,
            (long long)nc);
      }
    }
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    cudaFree(ref);
    cudaFree(ws);
    cudaFree(stat);
  }
  if (!failures && !g_quiet) printf("ok   %s\n", label);
  fflush(stdout);
  return failures;
}
static void TimeOne(const ConvGeometry& g, const char* label, int op,
                    std::optional<Plan> plan = std::nullopt) {
  if (!plan) plan = PlanOf(op, g);
  if (!plan) {
    printf("%s op %d: no plan\n", label, op);
    return;
  }
  const int sets = 3;
  int64_t na = op == 1 ? g.y_size() : g.x_size(),
          nb = op == 2 ? g.y_size() : g.w_size(),
          nc = op == 0   ? g.y_size()
               : op == 1 ? g.x_size()
                         : g.w_size();
  bf16 *a[sets], *b[sets], *c[sets];
  char* ws;
  CK(cudaMalloc(&ws, plan->workspace + 256));
  for (int i = 0; i < sets; ++i) {
    CK(cudaMalloc(&a[i], na * 2));
    CK(cudaMalloc(&b[i], nb * 2));
    CK(cudaMalloc(&c[i], nc * 2));
    Fill<bf16><<<1024, 256>>>(a[i], na, i, 0);
    Fill<bf16><<<1024, 256>>>(b[i], nb, 10 + i, 0);
  }
  CK(cudaDeviceSynchronize());
  CK(Go<bf16>(op, g, *plan, a[0], b[0], c[0], ws, Stage::kPrepare, 0));
  double t = TimeGraph(
      [&](int i, cudaStream_t s) {
        int k = i % sets;
        return Go<bf16>(op, g, *plan, a[k], b[k], c[k], ws, Stage::kLaunch, s);
      },
      9, 5);
  const double flop = 2.0 * g.N * g.P * g.Q * g.C * g.K * g.R * g.S;
  const double bytes = 2.0 * (g.x_size() + g.y_size() + g.w_size());
  printf(
      "%-28s op%d gathers %d tile %dx%d blocks %d: %.1f us  %.0f TFLOP/s  %.0f "
      "GB/s (roof %.0f)\n",
      label, op, int(plan->path), plan->tile_m, plan->tile_n, plan->blocks, t,
      flop / t * 1e-6, bytes / t * 1e-3, std::max(flop / 790e6, bytes / 4.3e6));
  fflush(stdout);
  for (int i = 0; i < sets; ++i) cudaFree(a[i]), cudaFree(b[i]), cudaFree(c[i]);
  cudaFree(ws);
}
int main(int argc, char** argv) {
  cudaDeviceProp prop;
  CK(cudaGetDeviceProperties(&prop, 0));
  g_sms = prop.multiProcessorCount;
  const std::string mode = argc > 1 ? argv[1] : "check";
  struct Case {
    ConvGeometry g;
    const char* name;
  };
  const Case cases[] = {
      {Geo(2, 9, 9, 3, 16, 3, 3, 1, 1, 1, 1), "3x3 3->16"},
      {Geo(3, 28, 28, 1, 16, 3, 3, 1, 1, 1, 1), "flux 1->16"},
      {Geo(5, 9, 11, 65, 33, 3, 3, 1, 1, 1, 1), "3x3 65->33"},
      {Geo(3, 30, 32, 3, 64, 7, 7, 2, 1, 3, 3), "stem"},
      {Geo(2, 31, 29, 3, 64, 7, 7, 2, 1, 3, 3), "stem odd"},
      {Geo(2, 32, 48, 3, 768, 16, 16, 16, 1, 0, 0), "vit"},
      {Geo(2, 32, 48, 3, 96, 4, 4, 4, 1, 0, 0), "convnext"},
      {Geo(2, 32, 48, 3, 97, 4, 4, 4, 1, 0, 0), "convnext odd K"},
      {Geo(2, 33, 49, 5, 12, 4, 4, 4, 1, 0, 0), "patch rest"},
      {Geo(2, 24, 24, 4, 64, 7, 7, 2, 1, 3, 3), "stem C4"},
      {Geo(2, 23, 24, 2, 6, 5, 5, 3, 2, 3, 3), "s3 d2 2->6"},
      {Geo(2, 23, 24, 12, 20, 3, 3, 1, 3, 3, 3), "d3 12->20"},
      {Geo(2, 7, 5, 257, 1025, 1, 1, 1, 1, 0, 0), "1x1 257 1025"},
      {Geo(2, 7, 5, 1025, 130, 3, 3, 1, 1, 1, 1), "3x3 1025 130"},
      {Geo(3, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0), "1"},
      {Geo(2, 5, 4, 3, 5, 5, 5, 1, 1, 6, 7, 5, 5), "pad > image"},
      {Geo(2, 14, 14, 3, 2, 3, 3, 1, 1, -2, 1), "neg pad"},
      {Geo(2, 40, 40, 64, 64, 3, 3, 10, 1, 1, 1), "stride 10"},
      {Geo(1, 300, 300, 16, 24, 3, 3, 1, 140, 140, 140), "dilation 140"},
      {Geo2(4, 1, 50, 6, 10, 1, 9, 1, 2, 1, 1, 0, 0, 4, 4), "1-D"},
      {Geo2(2, 20, 21, 3, 7, 2, 3, 3, 2, 2, 1, 1, 0, 0, 2), "mixed"},
      {Geo(40, 28, 28, 20, 36, 3, 3, 2, 1, 1, 1), "28 s2 20->36"},
      {Geo(300, 5, 5, 3, 9, 3, 3, 1, 1, 1, 1), "many samples"},
      {Geo(8, 64, 64, 3, 64, 3, 3, 1, 1, 1, 1), "64 3x3 3->64"},
      {Geo(9, 30, 70, 64, 3, 3, 3, 1, 1, 1, 1), "64->3"},
      {Geo(3, 13, 131, 136, 13, 4, 3, 1, 1, 1, 2), "136->13"},
      {Geo(3, 13, 65, 72, 5, 7, 7, 1, 1, 3, 3), "7x7 72->5"},
      {Geo(3, 20, 66, 6, 72, 7, 5, 1, 1, 2, 3), "7x5 6->72"},
      {Geo(3, 21, 67, 1, 40, 5, 7, 4, 1, 2, 2), "s4 1->40"},
      {Geo(2, 9, 9, 2, 64, 1, 1, 2, 1, 0, 0), "1x1 s2 2->64"},
      {Geo(2, 21, 135, 7, 72, 3, 4, 2, 1, 1, 1), "s2 7->72"},
  };
  if (mode == "check") {
    int f = 0;
    for (auto& c : cases) f += CheckOne<bf16>(c.g, c.name);
    for (int i : {0, 2, 3, 5, 6, 9}) f += CheckOne<__half>(cases[i].g, "f16");
    printf("failures: %d\n", f);
    CheckOne<bf16>(Geo(64, 256, 256, 33, 9, 1, 1, 1, 1, 0, 0), "slices", 3);
    CheckOne<bf16>(Geo(5, 700, 700, 9, 65, 3, 3, 1, 1, 1, 1), "slices 2", 3);
  } else if (mode == "fuzz") {
    std::mt19937 rng(argc > 3 ? atoi(argv[3]) : 1);
    auto pick = [&](int a, int b) { return int(rng() % (b - a + 1)) + a; };
    auto chan = [&]() {
      int k = pick(0, 3);
      return k == 0   ? pick(1, 12)
             : k == 1 ? 8 * pick(1, 12)
             : k == 2 ? pick(13, 80)
                      : pick(1, 300);
    };
    int f = 0, done = 0;
    g_quiet = true;
    const int count = atoi(argv[2]);
    while (done < count) {
      int st = pick(0, 9) == 0 ? 18 : 4;
      int R = pick(1, 7), S = pick(1, 7), sh = pick(1, st),
          sw = pick(0, 2) ? pick(1, st) : sh;
      int pt = pick(-2, 5), pb = pick(-2, 5), pl = pick(-2, 5),
          pr = pick(-2, 5);
      int H = pick(1, 40), W = pick(1, 40);
      if (pick(0, 5) == 0) {
        sh = R, sw = S, pt = pb = pl = pr = 0, H = R * pick(1, 6),
        W = S * pick(1, 6);
      }
      int dh = pick(0, 3) ? 1 : pick(1, 3), dw = pick(0, 3) ? 1 : pick(1, 3);
      if (H + pt + pb < (R - 1) * dh + 1 || W + pl + pr < (S - 1) * dw + 1)
        continue;
      ConvGeometry g = Geo2(pick(1, 4), H, W, chan(), chan(), R, S, sh, sw, dh,
                            dw, pt, pb, pl, pr);
      if (double(g.y_size()) * g.taps() * g.C > 3e9) continue;
      char label[200];
      snprintf(label, sizeof label,
               "N%d %dx%d C%d K%d R%dS%d s%d,%d d%d,%d p%d,%d,%d,%d", int(g.N),
               H, W, int(g.C), int(g.K), R, S, sh, sw, dh, dw, pt, pb, pl, pr);
      f +=
          done % 4 == 3 ? CheckOne<__half>(g, label) : CheckOne<bf16>(g, label);
      ++done;
    }
    printf("fuzz %d, failures %d\n", count, f);
    for (auto& [k, v] : g_paths) printf("  path %s: %d\n", k.c_str(), v);
  } else if (mode == "few") {
    struct {
      ConvGeometry g;
      const char* name;
    } few[] = {{Geo(1000, 14, 14, 16, 32, 3, 3, 1, 1, 1, 1), "flux 16->32"},
               {Geo(64, 56, 56, 8, 64, 3, 3, 1, 1, 1, 1), "56 8->64"},
               {Geo(8, 16, 16, 16, 16, 3, 3, 1, 1, 1, 1), "sofie 16"},
               {Geo(64, 56, 56, 16, 64, 1, 1, 1, 1, 0, 0), "56 1x1 16"},
               {Geo(1000, 14, 14, 32, 16, 3, 3, 1, 1, 1, 1), "flux 32->16"},
               {Geo(64, 56, 56, 64, 8, 3, 3, 1, 1, 1, 1), "56 64->8"},
               {Geo(64, 56, 56, 64, 16, 3, 3, 1, 1, 1, 1), "56 64->16"},
               {Geo(64, 56, 56, 16, 16, 3, 3, 1, 1, 1, 1), "56 16->16"}};
    for (auto& l : few)
      for (int op = 0; op < 3; ++op) {
        TimeOne(l.g, l.name, op);
        auto p = op == 0   ? PlanStripFprop(l.g, g_sms)
                 : op == 1 ? PlanStripDgrad(l.g, g_sms)
                           : PlanStripWgrad(l.g, g_sms);
        if (p) TimeOne(l.g, l.name, op, p);
        p = op == 0   ? PlanSweepFprop(l.g, g_sms)
            : op == 1 ? PlanSweepDgrad(l.g, g_sms)
                      : std::nullopt;
        if (p) TimeOne(l.g, l.name, op, p);
      }
  } else if (mode == "one") {
    const int i = atoi(argv[2]);
    CheckOne<bf16>(cases[i].g, cases[i].name, argc > 3 ? atoi(argv[3]) : 7);
  } else {
    const Case layers[] = {
        {Geo(256, 224, 224, 3, 64, 7, 7, 2, 1, 3, 3), "stem"},
        {Geo(256, 224, 224, 3, 768, 16, 16, 16, 1, 0, 0), "vit"},
        {Geo(256, 224, 224, 3, 96, 4, 4, 4, 1, 0, 0), "convnext"},
        {Geo(1000, 28, 28, 1, 16, 3, 3, 1, 1, 1, 1), "flux1"},
        {Geo(256, 32, 32, 3, 64, 3, 3, 1, 1, 1, 1), "cifar 3->64"},
        {Geo(256, 224, 224, 4, 64, 7, 7, 2, 1, 3, 3), "stem C4"},
        {Geo(8, 224, 224, 3, 64, 7, 7, 2, 1, 3, 3), "stem b8"},
        {Geo(64, 28, 28, 129, 129, 3, 3, 1, 1, 1, 1), "28 3x3 129"},
        {Geo(64, 28, 28, 132, 132, 3, 3, 1, 1, 1, 1), "28 3x3 132"},
        {Geo(64, 28, 28, 136, 136, 3, 3, 1, 1, 1, 1), "28 3x3 136"},
        {Geo(64, 28, 28, 65, 65, 3, 3, 1, 1, 1, 1), "28 3x3 65"},
        {Geo(16, 14, 14, 1025, 1025, 3, 3, 1, 1, 1, 1), "14 3x3 1025"},
        {Geo(64, 28, 28, 513, 513, 1, 1, 1, 1, 0, 0), "28 1x1 513"},
        {Geo(256, 56, 56, 64, 3, 3, 3, 1, 1, 1, 1), "56 3x3 64->3"},
        {Geo(256, 32, 32, 64, 3, 3, 3, 1, 1, 1, 1), "32 3x3 64->3"},
    };
    for (auto& l : layers) {
      if (argc > 2 && !strstr(argv[2], l.name)) continue;
      for (int op = 0; op < 3; ++op) TimeOne(l.g, l.name, op);
    }
  }
}
