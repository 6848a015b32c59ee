// SPDX-License-Identifier: Apache-2.0
#include "blas.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace nb = nanobind;

namespace jax_convbatch {
namespace {

template <typename T>
using GemmRoutine = void(char* transa, char* transb, int* m, int* n, int* k,
                         T* alpha, T* a, int* lda, T* b, int* ldb, T* beta,
                         T* c, int* ldc);

GemmRoutine<float>* sgemm = nullptr;
GemmRoutine<double>* dgemm = nullptr;

template <typename T>
void Load(nb::dict api, const char* name, GemmRoutine<T>** routine) {
  nb::object capsule = api[name];
  // The capsule's name is the C signature.
  const char* signature = PyCapsule_GetName(capsule.ptr());
  if (signature == nullptr || std::strstr(signature, "int *") == nullptr) {
    throw nb::import_error(
        (std::string("scipy.linalg.cython_blas.") + name +
         " does not take int sizes: " + (signature ? signature : "no name"))
            .c_str());
  }
  *routine = reinterpret_cast<GemmRoutine<T>*>(
      PyCapsule_GetPointer(capsule.ptr(), signature));
  if (*routine == nullptr) throw nb::python_error();
}

GemmRoutine<float>* Routine(float) { return sgemm; }
GemmRoutine<double>* Routine(double) { return dgemm; }

}  // namespace

void LoadBlas() {
  nb::dict api = nb::cast<nb::dict>(
      nb::module_::import_("scipy.linalg.cython_blas").attr("__pyx_capi__"));
  Load(api, "sgemm", &sgemm);
  Load(api, "dgemm", &dgemm);
}

template <typename T>
void Gemm(bool transpose_a, bool transpose_b, int64_t M, int64_t N, int64_t K,
          const T* A, int64_t lda, const T* B, int64_t ldb, T beta, T* C,
          int64_t ldc) {
  // The BLAS is column-major: it computes the transpose, B^T A^T.
  char first = transpose_b ? 'T' : 'N', second = transpose_a ? 'T' : 'N';
  int m = static_cast<int>(N), n = static_cast<int>(M), k = static_cast<int>(K);
  // A leading dimension must be at least 1 even where nothing is read.
  int lda_int = static_cast<int>(std::max<int64_t>(lda, 1));
  int ldb_int = static_cast<int>(std::max<int64_t>(ldb, 1));
  int ldc_int = static_cast<int>(std::max<int64_t>(ldc, 1));
  T one = 1;
  Routine(T{})(&first, &second, &m, &n, &k, &one, const_cast<T*>(B), &ldb_int,
               const_cast<T*>(A), &lda_int, &beta, C, &ldc_int);
}

template void Gemm(bool, bool, int64_t, int64_t, int64_t, const float*, int64_t,
                   const float*, int64_t, float, float*, int64_t);
template void Gemm(bool, bool, int64_t, int64_t, int64_t, const double*,
                   int64_t, const double*, int64_t, double, double*, int64_t);

}  // namespace jax_convbatch
