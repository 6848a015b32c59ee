# Whether the CUDA module is built, and with which toolkit. It can also be run
# alone: cmake -DJAX_CONVBATCH_CUDA=ON -P cmake/cuda_choice.cmake

set(JAX_CONVBATCH_CUDA AUTO CACHE STRING
    "The CUDA module: AUTO (with a toolkit and a visible GPU), ON or OFF")
# What exists where an NVIDIA GPU can be used; also in jax_convbatch/_native/targets.py.
set(JAX_CONVBATCH_GPU_SIGNS
    "/dev/nvidia[0-9]*;/proc/driver/nvidia/gpus/*;/usr/lib/wsl/lib/libcuda.so*"
    CACHE STRING "Glob patterns; a match means that a GPU is visible")
mark_as_advanced(JAX_CONVBATCH_GPU_SIGNS)

# Sets `result` to the folders that may hold a toolkit. A folder that the user
# names is the only one.
function(cuda_toolkit_candidates result)
  foreach(named CUDAToolkit_ROOT ENV{CUDAToolkit_ROOT} ENV{CUDA_HOME}
          ENV{CUDA_PATH})
    if(named MATCHES "^ENV{(.*)}$")
      set(value "$ENV{${CMAKE_MATCH_1}}")
    else()
      set(value "${${named}}")
    endif()
    if(value)
      set(${result} "${value}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(found "")
  find_program(nvcc_in_path nvcc NO_CACHE)
  if(nvcc_in_path)
    file(REAL_PATH "${nvcc_in_path}" nvcc_in_path)
    cmake_path(GET nvcc_in_path PARENT_PATH bin)
    cmake_path(GET bin PARENT_PATH root)
    list(APPEND found "${root}")
  endif()
  file(GLOB versioned LIST_DIRECTORIES true /usr/local/cuda-*)
  list(SORT versioned COMPARE NATURAL ORDER DESCENDING)
  list(APPEND found /usr/local/cuda ${versioned} /opt/cuda)
  list(REMOVE_DUPLICATES found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Looks at one folder. Sets CUDA_PROBLEM, empty where the folder holds all that
# is needed, and then CUDA_NVCC, CUDA_VERSION, CUBLASLT_LIBRARY and
# CUBLASLT_INCLUDE_DIR. The folder may be a toolkit or the folder nvidia/cu13 of
# the PyPI packages, where libraries have versioned names only.
function(examine_cuda_toolkit root)
  set(nvcc "${root}/bin/nvcc")
  file(GLOB header "${root}/include/cublasLt.h"
       "${root}/targets/*/include/cublasLt.h")
  file(GLOB library "${root}/lib64/libcublasLt.so.13"
       "${root}/lib/libcublasLt.so.13" "${root}/targets/*/lib/libcublasLt.so.13")
  set(problem "")
  set(version "")
  if(NOT EXISTS "${nvcc}")
    set(problem "${root} has no bin/nvcc")
  else()
    execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE output
                    ERROR_QUIET)
    if(output MATCHES "release ([0-9.]+)")
      set(version "${CMAKE_MATCH_1}")
    endif()
    if(NOT version)
      set(problem "${nvcc} --version fails")
    elseif(version VERSION_LESS 13)
      set(problem "${nvcc} is CUDA ${version}, older than 13")
    elseif(NOT header)
      set(problem "${root} has no header cublasLt.h of cuBLAS")
    elseif(NOT library)
      set(problem "${root} has no library libcublasLt.so.13 of cuBLAS")
    else()
      list(GET header 0 header)
      list(GET library 0 library)
      cmake_path(GET header PARENT_PATH include_dir)
      set(CUDA_NVCC "${nvcc}" PARENT_SCOPE)
      set(CUDA_VERSION "${version}" PARENT_SCOPE)
      set(CUBLASLT_LIBRARY "${library}" PARENT_SCOPE)
      set(CUBLASLT_INCLUDE_DIR "${include_dir}" PARENT_SCOPE)
    endif()
  endif()
  set(CUDA_PROBLEM "${problem}" PARENT_SCOPE)
endfunction()

# Sets CUDA_CHOSEN and CUDA_REASON, and what examine_cuda_toolkit sets.
function(choose_cuda)
  string(TOUPPER "${JAX_CONVBATCH_CUDA}" choice)
  if(NOT choice MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "JAX_CONVBATCH_CUDA=${JAX_CONVBATCH_CUDA}: the choices "
                        "are AUTO, ON and OFF.")
  endif()
  set(CUDA_CHOSEN FALSE PARENT_SCOPE)
  if(choice STREQUAL "OFF")
    set(CUDA_REASON "JAX_CONVBATCH_CUDA=OFF" PARENT_SCOPE)
    return()
  endif()
  file(GLOB signs LIST_DIRECTORIES true ${JAX_CONVBATCH_GPU_SIGNS})
  if(choice STREQUAL "AUTO" AND NOT signs)
    set(CUDA_REASON "no NVIDIA GPU is visible; JAX_CONVBATCH_CUDA=ON builds it \
all the same" PARENT_SCOPE)
    return()
  endif()

  cuda_toolkit_candidates(candidates)
  set(problems "")
  foreach(root IN LISTS candidates)
    examine_cuda_toolkit("${root}")
    if(NOT CUDA_PROBLEM)
      set(CUDA_CHOSEN TRUE PARENT_SCOPE)
      if(choice STREQUAL "ON")
        set(why "JAX_CONVBATCH_CUDA=ON")
      else()
        set(why "an NVIDIA GPU is visible")
      endif()
      set(CUDA_REASON "${why}; CUDA ${CUDA_VERSION} in ${root}" PARENT_SCOPE)
      foreach(name CUDA_NVCC CUDA_VERSION CUBLASLT_LIBRARY CUBLASLT_INCLUDE_DIR)
        set(${name} "${${name}}" PARENT_SCOPE)
      endforeach()
      return()
    endif()
    if(EXISTS "${root}" OR root STREQUAL candidates)
      list(APPEND problems "${CUDA_PROBLEM}")
    endif()
  endforeach()
  if(NOT problems)
    list(JOIN candidates ", " problems)
    set(problems "no nvcc on the PATH and none of ${problems} exists")
  endif()
  list(JOIN problems "; " problems)
  if(choice STREQUAL "ON")
    message(FATAL_ERROR
      "JAX_CONVBATCH_CUDA=ON needs a CUDA toolkit of version 13 or newer with "
      "cuBLAS, and there is none: ${problems}. Install one, or name its folder "
      "in the environment variable CUDA_HOME (or with "
      "-DCUDAToolkit_ROOT=FOLDER).")
  endif()
  set(CUDA_REASON "an NVIDIA GPU is visible, but there is no CUDA toolkit of \
version 13 or newer with cuBLAS: ${problems}" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  choose_cuda()
  message("${CUDA_CHOSEN}: ${CUDA_REASON}")
endif()
