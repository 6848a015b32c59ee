"""Written by CMake: how the native modules were built."""

JAXLIB_VERSION = "0.10.2"
FFI_API_VERSION = (0, 3)
CXX_COMPILER = "GNU 12.2.0"
CUDA_REASON = "JAX_CONVBATCH_CUDA=ON; CUDA 13.0 in /usr/local/cuda"
