// SPDX-License-Identifier: Apache-2.0
#include "openblas.h"

#include <dlfcn.h>
#ifdef __linux__
#include <link.h>
#endif

#include <cstring>
#include <mutex>
#include <string>

namespace jax_convbatch {
namespace {

struct Controls {
  int (*get)() = nullptr;
  void (*set)(int) = nullptr;
  char* (*core)() = nullptr;  // the processors that its kernels are for
};

#ifdef __linux__
// Finds OpenBLAS among the libraries that are loaded. scipy's wheels prefix its
// symbols; numpy's wheels carry another copy, whose symbols end in "64_".
int FindControls(dl_phdr_info* info, size_t, void* result) {
  if (std::strstr(info->dlpi_name, "openblas") == nullptr) return 0;
  void* library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return 0;
  auto* controls = static_cast<Controls*>(result);
  for (const std::string prefix : {"scipy_openblas_", "openblas_"}) {
    const auto find = [&](const char* name) {
      return dlsym(library, (prefix + name).c_str());
    };
    controls->get = reinterpret_cast<int (*)()>(find("get_num_threads"));
    controls->set = reinterpret_cast<void (*)(int)>(find("set_num_threads"));
    controls->core = reinterpret_cast<char* (*)()>(find("get_corename"));
    if (controls->get != nullptr && controls->set != nullptr) return 1;
  }
  *controls = Controls{};
  dlclose(library);
  return 0;
}
#endif

const Controls& BlasControls() {
  static const Controls controls = [] {
    Controls found;
#ifdef __linux__
    dl_iterate_phdr(FindControls, &found);
#endif
    return found;
  }();
  return controls;
}

std::mutex mutex;
int users = 0;     // guarded by mutex
int previous = 1;  // guarded by mutex

}  // namespace

int64_t WorkWithoutPacking() {
  static const int64_t work = [] {
    const auto core = BlasControls().core;
    for (const char* name : {"SkylakeX", "Cooperlake", "SapphireRapids"}) {
      // sgemm_small_matrix_permit and dgemm_small_matrix_permit in its sources
      if (core != nullptr && std::strcmp(core(), name) == 0) return 1000000;
    }
    return 0;
  }();
  return work;
}

bool OneThreadBlas::Possible() { return BlasControls().set != nullptr; }

OneThreadBlas::OneThreadBlas() {
  if (!Possible()) return;
  std::lock_guard<std::mutex> lock(mutex);
  if (users++ == 0) {
    previous = BlasControls().get();
    BlasControls().set(1);
  }
}

OneThreadBlas::~OneThreadBlas() {
  if (!Possible()) return;
  std::lock_guard<std::mutex> lock(mutex);
  if (--users == 0) BlasControls().set(previous);
}

}  // namespace jax_convbatch
