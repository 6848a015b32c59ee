// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/kernels/padding/pad_plan.h"

#include <algorithm>

#include "cuda/sm90/kernels/narrow_groups/group_tf32.h"
#include "cuda/sm90/kernels/narrow_groups/group_tf32_plan.h"
#include "cuda/sm90/problem/k_slices.h"

namespace jax_convbatch::hopper {
namespace {

// Of padded samples at a time, so that they stay in the L2; wgrad has all at
// once. With a filter the workspace is at most kWorkspace.
constexpr int64_t kSlice = 32 << 20;
constexpr int64_t kMostFilter = 24 << 20;
constexpr int64_t kWorkspace = 64 << 20;
constexpr int64_t kSlicePixels = 1 << 26;

int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// A padded problem: all that follows from the geometry.
struct Pads {
  ConvGeometry g;                     // of a slice
  bool x, y, w;                       // what is padded
  int64_t x_bytes, y_bytes, w_bytes;  // of a slice, aligned; 0 if not padded

  // False where it is too large.
  static bool Make(Op op, const ConvGeometry& g, Type type, Pads* pads) {
    const int64_t element = ElementBytes(type);
    const int64_t vector = 16 / element;
    auto up = [&](int64_t n) { return (n + vector - 1) / vector * vector; };
    pads->g = g;
    pads->g.C = up(g.C);
    pads->g.K = up(g.K);
    pads->x = pads->g.C != g.C;
    pads->y = pads->g.K != g.K;
    pads->w = pads->x || pads->y;
    // A double, as it does not overflow.
    const double x_sample = 1.0 * g.H * g.W * pads->g.C * element;
    const double y_sample = 1.0 * g.P * g.Q * pads->g.K * element;
    const double sample = pads->x * x_sample + pads->y * y_sample;
    const double w = 1.0 * g.taps() * pads->g.C * pads->g.K * element;
    const double pixels = 1.0 * std::max(g.H * g.W, g.P * g.Q);
    if (!pads->w || w > kMostFilter || sample > kSlice ||
        pixels > kSlicePixels) {
      return false;
    }
    if (op == Op::kWgrad) {
      if (sample * g.N > kSlice) return false;
    } else {
      const double most = std::min(kSlice / std::max(sample, 1.0),
                                   kSlicePixels / std::max(pixels, 1.0));
      int64_t slice = std::max<int64_t>(
          1, static_cast<int64_t>(std::min<double>(most, g.N)));
      // Slices begin where 16 bytes do.
      if (slice < g.N && slice > 8) slice = slice / 8 * 8;
      pads->g.N = slice;
    }
    auto bytes = [&](bool padded, int64_t size) {
      return padded ? Aligned(size * element) : 0;
    };
    pads->x_bytes = bytes(pads->x, pads->g.x_size());
    pads->y_bytes = bytes(pads->y, pads->g.y_size());
    pads->w_bytes = bytes(pads->w, pads->g.w_size());
    return true;
  }

  int64_t bytes() const { return x_bytes + y_bytes + w_bytes; }
};

// Of samples that are as many as take turns, or fewer. The workspace is the
// copies'.
std::optional<Plan> PlanSlice(Op op, const ConvGeometry& g, Type type,
                              int multiprocessors) {
  const auto plan = PlanCopies(op, g, type, multiprocessors);
  return plan ? std::optional(WithoutPartials(*plan)) : plan;
}

}  // namespace

Plan WithoutPartials(Plan plan) {
  if (plan.k_slices == 1) return plan;
  plan.tile_m = kAddedKSlicePixels;
  plan.tile_n = 64;
  plan.workspace = 0;
  return WithKernel(plan, TileKernel::kPingPong);
}

std::optional<Plan> PlanCopies(Op op, const ConvGeometry& g, Type type,
                               int multiprocessors) {
  return ByOp(op, PlanFprop, PlanDgrad, PlanWgrad)(g, type, multiprocessors);
}

cudaError_t RunCopies(Op op, const ConvCall& call, Stage stage,
                      cudaStream_t stream) {
  if (IsGroupTf32(call.g, call.type) && op != Op::kWgrad) {
    return RunGroupTf32(call, op == Op::kDgrad, stage, stream);
  }
  return ByOp(op, Fprop, Dgrad, Wgrad)(call, stage, stream);
}

std::optional<Plan> PlanPads(Op op, const ConvGeometry& g, Type type,
                             int multiprocessors) {
  Pads pads;
  if (!Pads::Make(op, g, type, &pads)) return std::nullopt;
  std::optional<Plan> plan = PlanSlice(op, pads.g, type, multiprocessors);
  if (!plan) return std::nullopt;
  plan->workspace += pads.bytes();
  if (plan->workspace > kWorkspace) return std::nullopt;
  plan->path = Path::kPads;
  return plan;
}

cudaError_t RunPads(Op op, const ConvCall& call, int multiprocessors,
                    Stage stage, cudaStream_t stream) {
  const ConvGeometry& g = call.g;
  const int element = ElementBytes(call.type);
  Pads pads;
  if (!Pads::Make(op, g, call.type, &pads)) return cudaErrorInvalidValue;
  char* const x_pad = static_cast<char*>(call.workspace);
  char* const y_pad = x_pad + pads.x_bytes;
  char* const w_pad = y_pad + pads.y_bytes;
  char* const workspace = w_pad + pads.w_bytes;

  // Copies between a tensor as given and as padded, where it is.
  auto x_size = [&](int64_t n, bool pad) {
    const int64_t from = pad ? g.C : pads.g.C, to = pad ? pads.g.C : g.C;
    return Resizing{1, n * g.H * g.W, from, n * g.H * g.W, to};
  };
  auto y_size = [&](int64_t n, bool pad) {
    const int64_t from = pad ? g.K : pads.g.K, to = pad ? pads.g.K : g.K;
    return Resizing{1, n * g.P * g.Q, from, n * g.P * g.Q, to};
  };
  auto resize = [&](const Resizing& resizing, const void* from, void* to) {
    return Resize(resizing, element, from, to, stage, stream);
  };

  if (op != Op::kWgrad) {
    const Resizing w_size = {g.taps(), g.C, g.K, pads.g.C, pads.g.K};
    const cudaError_t error = resize(w_size, call.rhs, w_pad);
    if (error != cudaSuccess) return error;
  }
  for (int64_t first = 0; first < g.N; first += pads.g.N) {
    ConvGeometry slice = pads.g;
    slice.N = std::min(pads.g.N, g.N - first);
    const auto plan = PlanSlice(op, slice, call.type, multiprocessors);
    if (!plan) return cudaErrorInvalidValue;
    const int64_t x_at = first * g.H * g.W * g.C * element;
    const int64_t y_at = first * g.P * g.Q * g.K * element;
    cudaError_t error = cudaSuccess;
    auto in = [&](const void* given, bool padded, const Resizing& resizing,
                  char* pad) -> const void* {
      if (!padded) return given;
      if (error == cudaSuccess) error = resize(resizing, given, pad);
      return pad;
    };
    auto x = [&](const void* given) {
      return in(static_cast<const char*>(given) + x_at, pads.x,
                x_size(slice.N, true), x_pad);
    };
    auto y = [&](const void* given) {
      return in(static_cast<const char*>(given) + y_at, pads.y,
                y_size(slice.N, true), y_pad);
    };
    const void *lhs, *rhs;
    char *to, *given = static_cast<char*>(call.result);
    bool padded;
    Resizing back;
    switch (op) {
      case Op::kFprop:
        lhs = x(call.lhs), rhs = w_pad, given += y_at;
        padded = pads.y, to = y_pad, back = y_size(slice.N, false);
        break;
      case Op::kDgrad:
        lhs = y(call.lhs), rhs = w_pad, given += x_at;
        padded = pads.x, to = x_pad, back = x_size(slice.N, false);
        break;
      default:
        lhs = x(call.lhs), rhs = y(call.rhs);
        padded = true, to = w_pad;
        back = {g.taps(), pads.g.C, pads.g.K, g.C, g.K};
    }
    if (!padded) to = given;
    Epilogue epilogue;  // of the slice
    if (call.epilogue != nullptr) {
      epilogue = *call.epilogue;
      if (epilogue.residual != nullptr) {
        epilogue.residual = static_cast<const char*>(epilogue.residual) + y_at;
      }
      if (epilogue.z != nullptr) {
        epilogue.z = static_cast<char*>(epilogue.z) + y_at;
      }
      if (epilogue.bitmask != nullptr) epilogue.bitmask += y_at / element / 8;
    }
    if (error == cudaSuccess) {
      error = RunCopies(op,
                        {slice, call.type, *plan, lhs, rhs, to, workspace,
                         call.epilogue == nullptr ? nullptr : &epilogue},
                        stage, stream);
    }
    if (error == cudaSuccess && padded) error = resize(back, to, given);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace jax_convbatch::hopper
