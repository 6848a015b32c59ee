// fprop and dgrad of implicit_gemm: out = columns(image) * filter, class by
// class.
#ifndef JAX_CONVBATCH_CPU_IMPLICIT_FORWARD_H_
#define JAX_CONVBATCH_CPU_IMPLICIT_FORWARD_H_

#include "columns.h"

namespace jax_convbatch {

struct Forward {
  const ConvGeometry& g;
  bool dgrad;
  const void *image, *filter;
  Element type;  // of both
  void* out;
  Element out_type;
  // Results of this size will not be in the caches when somebody reads them.
  int64_t stream_bytes = 16 << 20;

  // `A` is the type of the arithmetic.
  template <typename A>
  void Run() const;
};

}  // namespace jax_convbatch

#endif  // JAX_CONVBATCH_CPU_IMPLICIT_FORWARD_H_
