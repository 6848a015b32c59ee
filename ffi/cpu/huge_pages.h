// SPDX-License-Identifier: Apache-2.0
// Asking the system for huge pages behind large results.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "xla/ffi/api/ffi.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace jax_convbatch {

// XLA's large buffers are mapped anew for each call of a program, and then
// every 4 KiB are a page fault at the first write, which takes several times as
// long as the write. Where the system gives huge pages to who asks for them
// ("madvise" in transparent_hugepage/enabled, the usual setting), a fault
// brings 2 MiB. This is advice and no more: where the memory has its pages, or
// the system has no huge ones, nothing happens.
inline void AskForHugePages(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  constexpr int64_t kPage = 2 << 20, kLeast = 4 << 20;
  if (bytes < kLeast) return;
  const auto address = reinterpret_cast<intptr_t>(data);
  const int64_t begin = address / kPage * kPage;
  const int64_t end = (address + bytes + kPage - 1) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// For what a handler is about to write: results, workspaces.
inline void AskForHugePages(
    std::initializer_list<xla::ffi::AnyBuffer> buffers) {
  for (const auto& buffer : buffers) {
    AskForHugePages(buffer.untyped_data(), buffer.size_bytes());
  }
}

}  // namespace jax_convbatch
