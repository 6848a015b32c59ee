// What every FFI handler shares: decoding of the attributes, early returns,
// dispatch over dtypes, and the carving of the workspace.
#ifndef JAX_CONVBATCH_FFI_CHECKS_H_
#define JAX_CONVBATCH_FFI_CHECKS_H_

#include <cstdint>
#include <sstream>
#include <string>

#include "conv_geometry.h"
#include "xla/ffi/api/ffi.h"

// Scalars only: what JAX passes as an attribute must be hashable. The three
// numbers of an Axes follow each other.
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_convbatch::ConvGeometry, StructMember<int64_t>("N"),
    StructMember<int64_t>("D"), StructMember<int64_t>("H"),
    StructMember<int64_t>("W"), StructMember<int64_t>("C"),
    StructMember<int64_t>("K"), StructMember<int64_t>("T"),
    StructMember<int64_t>("R"), StructMember<int64_t>("S"),
    StructMember<int64_t>("O"), StructMember<int64_t>("P"),
    StructMember<int64_t>("Q"), StructMember<int64_t>("groups"),
    StructMember<int64_t>("stride_d"), StructMember<int64_t>("stride_h"),
    StructMember<int64_t>("stride_w"), StructMember<int64_t>("pad_d"),
    StructMember<int64_t>("pad_h"), StructMember<int64_t>("pad_w"),
    StructMember<int64_t>("input_dilation_d"),
    StructMember<int64_t>("input_dilation_h"),
    StructMember<int64_t>("input_dilation_w"),
    StructMember<int64_t>("filter_dilation_d"),
    StructMember<int64_t>("filter_dilation_h"),
    StructMember<int64_t>("filter_dilation_w"));

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
// (jax_convbatch/planners.py) counts.
class Workspace {
 public:
  static constexpr int64_t kAlignment = 256;

  explicit Workspace(ffi::AnyBuffer buffer)
      : data_(static_cast<char*>(buffer.untyped_data())),
        size_(static_cast<int64_t>(buffer.size_bytes())) {}

  template <typename T>
  T* Take(int64_t count) {
    const int64_t bytes =
        (count * int64_t{sizeof(T)} + kAlignment - 1) / kAlignment * kAlignment;
    char* at = data_ + used_;
    used_ += bytes;
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

#endif  // JAX_CONVBATCH_FFI_CHECKS_H_
