# The CUDA module, with the toolkit that choose_cuda found.

# Machine code for the two generations that the kernels are tuned for, and PTX
# from which the driver compiles for later ones.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
endif()
set(CMAKE_CUDA_COMPILER "${CUDA_NVCC}")
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
enable_language(CUDA)

# Kernels that differ in little compress to a fifth. The driver unpacks a file's
# the first time that one of them is launched; every driver for CUDA 13 can.
string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")

include(cudnn_headers)

add_native_module(_cuda ${CUDA_SOURCES})
# cudnn-frontend's templates take half as long so. graph.cc keeps what it has: the
# linker may take functions of it for launches.
set_source_files_properties(
  ffi/cuda/cudnn/config.cc PROPERTIES COMPILE_OPTIONS -O1)
target_include_directories(_cuda SYSTEM PRIVATE
  "${CUBLASLT_INCLUDE_DIR}" ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}
  "${CUDNN_INCLUDE_DIR}" "${CUDNN_FRONTEND_INCLUDE_DIR}")
target_link_libraries(_cuda PRIVATE "${CUBLASLT_LIBRARY}" ${CMAKE_DL_LIBS})

# For no other architecture: elsewhere such a kernel fails to launch.
add_library(hopper OBJECT ${HOPPER_SOURCES})
set_target_properties(hopper PROPERTIES
  CUDA_ARCHITECTURES 90a-real CUDA_VISIBILITY_PRESET hidden)
target_include_directories(hopper PRIVATE ffi)
option(JAX_CONVBATCH_RACECHECK
  "Every thread arrives at the barriers that racecheck must follow; slower" OFF)
if(JAX_CONVBATCH_RACECHECK)
  target_compile_definitions(hopper PRIVATE JAX_CONVBATCH_RACECHECK)
endif()
target_link_libraries(_cuda PRIVATE hopper)

# jax[cuda13] brings cuBLAS in the nvidia wheels, beside this package. Where it
# does not, the toolkit's own will do, unless that is a wheel of a build
# environment that is gone by then, or the module is for other machines.
set(rpath "$ORIGIN/../nvidia/cu13/lib")
if(NOT CUBLASLT_LIBRARY MATCHES "/nvidia/cu13/" AND NOT JAX_CONVBATCH_MANYLINUX)
  cmake_path(GET CUBLASLT_LIBRARY PARENT_PATH toolkit_lib)
  list(APPEND rpath "${toolkit_lib}")
endif()
set_target_properties(_cuda PROPERTIES
  CUDA_VISIBILITY_PRESET hidden
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${rpath}")
