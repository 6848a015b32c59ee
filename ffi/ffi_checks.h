// SPDX-License-Identifier: Apache-2.0
// What every FFI handler shares: decoding of the attributes, early returns,
// dispatch over dtypes, and the carving of the workspace.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "conv_geometry.h"
#include "xla/ffi/api/ffi.h"

// Scalars only: what JAX passes as an attribute must be hashable. XLA calls a
// handler's Initialize before every execution of a program, so this is read as
// often as that: XLA's decoder of structs looks up each name among all.
namespace xla::ffi {

template <>
struct AttrDecoding<jax_convbatch::ConvGeometry> {
  using Type = jax_convbatch::ConvGeometry;

  static std::optional<Type> Decode(XLA_FFI_AttrType type, void* attr,
                                    DiagnosticEngine& diagnostic) {
    // As XLA has them, in the order of their names, and where each is in Type.
    struct Member {
      std::string_view name;
      int place;
    };
    static constexpr Member kMembers[] = {
        {"C", 4},
        {"D", 1},
        {"H", 2},
        {"K", 5},
        {"N", 0},
        {"O", 9},
        {"P", 10},
        {"Q", 11},
        {"R", 7},
        {"S", 8},
        {"T", 6},
        {"W", 3},
        {"filter_dilation_d", 22},
        {"filter_dilation_h", 23},
        {"filter_dilation_w", 24},
        {"groups", 12},
        {"input_dilation_d", 19},
        {"input_dilation_h", 20},
        {"input_dilation_w", 21},
        {"pad_d", 16},
        {"pad_h", 17},
        {"pad_w", 18},
        {"stride_d", 13},
        {"stride_h", 14},
        {"stride_w", 15},
    };
    constexpr int kCount = sizeof(kMembers) / sizeof(Member);
    static_assert(sizeof(Type) == kCount * sizeof(int64_t));
    const auto* attrs = static_cast<const XLA_FFI_Attrs*>(attr);
    if (type != XLA_FFI_AttrType_DICTIONARY || attrs->size != kCount) {
      return diagnostic.Emit("a geometry has ") << kCount << " attributes";
    }
    int64_t values[kCount];
    for (int i = 0; i < kCount; ++i) {
      const std::string_view name(attrs->names[i]->ptr, attrs->names[i]->len);
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attrs->attrs[i]);
      if (name != kMembers[i].name ||
          attrs->types[i] != XLA_FFI_AttrType_SCALAR ||
          scalar->dtype != XLA_FFI_DataType_S64) {
        return diagnostic.Emit("in a geometry the attribute ")
               << name << " stands where " << kMembers[i].name
               << ", of 64 bits, is expected";
      }
      values[kMembers[i].place] = *static_cast<const int64_t*>(scalar->value);
    }
    Type geometry;
    std::memcpy(&geometry, values, sizeof(geometry));
    return geometry;
  }
};

}  // namespace xla::ffi

namespace jax_convbatch {

namespace ffi = ::xla::ffi;

// Returns from the handler where a call failed.
#define JCB_RETURN_IF_ERROR(...)                  \
  do {                                            \
    ::xla::ffi::Error jcb_error_ = (__VA_ARGS__); \
    if (jcb_error_.failure()) return jcb_error_;  \
  } while (0)

// "fprop of x[8, 1, 56, 56, 64], w[1, 3, 3, 64, 64], groups 1, ...", for
// messages.
inline std::string Describe(const char* op, const ConvGeometry& g) {
  std::ostringstream out;
  auto axes = [&](const char* name, const Axes& a) {
    out << ", " << name << " (" << a.d << ", " << a.h << ", " << a.w << ")";
  };
  out << op << " of x[" << g.N << ", " << g.D << ", " << g.H << ", " << g.W
      << ", " << g.C << "], w[" << g.T << ", " << g.R << ", " << g.S << ", "
      << g.group_C() << ", " << g.K << "], y[" << g.N << ", " << g.O << ", "
      << g.P << ", " << g.Q << ", " << g.K << "], groups " << g.groups;
  axes("stride", g.stride);
  axes("pad", g.pad);
  axes("input dilation", g.input_dilation);
  axes("filter dilation", g.filter_dilation);
  return out.str();
}

// Hands out pieces of a workspace buffer in order. Each starts at a multiple of
// 256 bytes, which is what cuBLAS and vector loads want and what the plan
// (jax_convbatch/_plans/planners.py) counts.
class Workspace {
 public:
  static constexpr int64_t kAlignment = 256;

  // Of what one Take takes, so what a caller gives for it.
  static constexpr int64_t Aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  explicit Workspace(ffi::AnyBuffer buffer)
      : data_(static_cast<char*>(buffer.untyped_data())),
        size_(static_cast<int64_t>(buffer.size_bytes())) {}

  template <typename T>
  T* Take(int64_t count) {
    char* at = data_ + used_;
    used_ += Aligned(count * int64_t{sizeof(T)});
    return reinterpret_cast<T*>(at);
  }

  // To be asked after the last Take and before the first use.
  ffi::Error Check(const char* op, const ConvGeometry& g) const {
    if (used_ <= size_) return ffi::Error::Success();
    std::ostringstream message;
    message << "jax_convbatch: the workspace has " << size_ << " bytes where "
            << used_ << " are needed, in " << Describe(op, g);
    return ffi::Error::Internal(message.str());
  }

 private:
  char* data_;
  int64_t size_;
  int64_t used_ = 0;
};

// Compares a buffer's element count with the geometry's.
inline ffi::Error CheckSize(const char* op, const ConvGeometry& g,
                            const char* name, const ffi::AnyBuffer& buffer,
                            int64_t expected) {
  if (static_cast<int64_t>(buffer.element_count()) == expected) {
    return ffi::Error::Success();
  }
  std::ostringstream message;
  message << "jax_convbatch: " << name << " has " << buffer.element_count()
          << " elements where " << expected << " are expected, in "
          << Describe(op, g);
  return ffi::Error::InvalidArgument(message.str());
}

}  // namespace jax_convbatch
